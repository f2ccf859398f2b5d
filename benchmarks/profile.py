"""What profiling costs: nanoseconds per span, on and off, beside `contextlib.nullcontext` and a bare call.

    python benchmarks/profile.py [--quick]

All are measured in turn in short rounds, so that a noisy moment hits them all and the median forgets it; an empty loop
is taken off. An enabled span is measured with everything: nesting, self time, percentiles, the timeline, and the
folding of the ring into the sums. Then training steps, with profiling and without (profile_step.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import Claim, finish
from profile_step import step_claims

from penstock import profile
from penstock.profile import count, span

# torch asks for Python's own module `profile`, and must not find this file.
sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]

Loop = Callable[[int], None]

# A round is mostly over before a scheduler takes the core away, and holds a whole folding (of 1,024 events).
ROUND = 1024


def work() -> int:
    """A function that does nothing."""
    return 1


profile.disable()
plain_work = span("work")(work)
profile.enable()
timed_work = span("work")(work)


def empty(n: int) -> None:
    for _ in range(n):
        pass


def flat_span(n: int) -> None:
    for _ in range(n):
        with span("flat"):
            pass


def nested_spans(n: int) -> None:
    for _ in range(n // 3):
        with span("outer"), span("middle"), span("inner"):
            pass


def disabled_span(n: int) -> None:
    for _ in range(n):
        with span("flat"):
            pass


def null_context(n: int) -> None:
    for _ in range(n):
        with nullcontext():
            pass


def bare_call(n: int) -> None:
    for _ in range(n):
        work()


def disabled_decorator(n: int) -> None:
    for _ in range(n):
        plain_work()


def enabled_decorator(n: int) -> None:
    for _ in range(n):
        timed_work()


def counter(n: int) -> None:
    for _ in range(n):
        count("bytes", 4096)


LOOPS: tuple[Loop, ...] = (
    empty, flat_span, nested_spans, disabled_span, null_context, bare_call, disabled_decorator, enabled_decorator,
    counter,
)  # fmt: skip


def measure_loops(rounds: int) -> dict[str, float]:
    """Nanoseconds per pass of each loop: medians over rounds in which all take their turn."""
    seen: dict[str, list[float]] = {loop.__name__: [] for loop in LOOPS}
    for loop in LOOPS:
        loop(ROUND)
    for _ in range(rounds):
        for loop in LOOPS:
            profile.disable() if loop is disabled_span else profile.enable()
            loop(30)  # the first calls after a switch specialise the loop
            began_ns = perf_counter_ns()
            loop(ROUND)
            seen[loop.__name__].append((perf_counter_ns() - began_ns) / ROUND)
    profile.enable()
    medians = {name: statistics.median(values) for name, values in seen.items()}
    return {name: value - medians["empty"] for name, value in medians.items() if name != "empty"}


def span_claims(rounds: int) -> list[Claim]:
    """The cost of a span and of its absence, as a table and as claims."""
    ns = measure_loops(rounds)
    print(f"{'':<28}{'ns per pass':>12}")
    for name, value in ns.items():
        print(f"{name.replace('_', ' '):<28}{value:>12.0f}")
    return [
        Claim("µs per enabled span, flat", ns["flat_span"] / 1e3, "<= 1.2"),
        Claim("µs per enabled span, three deep", ns["nested_spans"] / 1e3, "<= 1.2"),
        Claim("disabled span over contextlib.nullcontext", ns["disabled_span"] / ns["null_context"], "<= 1.5"),
        Claim("a decorated function is the function itself when disabled", float(plain_work is work), ">= 1"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: some seconds")
    options = parser.parse_args()
    claims = span_claims(rounds=300 if options.quick else 1200)
    with tempfile.TemporaryDirectory() as made:
        claims += step_claims(Path(made), options.quick)
    finish(claims)


if __name__ == "__main__":
    main()
