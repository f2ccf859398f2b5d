"""What profiling costs a training step: the same run, in turns with and without, a few steps each.

    python benchmarks/profile_step.py RUN DIRECTORY PAIRS      # one process of it, told as JSON

Turns are short (a machine becomes slower or faster within a second) and their order is turned round (off, on, on, off);
the first steps of a turn are left out, for their batches were prepared in the turn before. Within one process the two
differ by up to some percent even where they run the same code (where its memory lies, which core has which thread), so
several fresh processes are asked, and what counts is the median over the pairs of turns of all of them.

The bar is on the example that trains ACT. Two small models are measured beside it, whose steps are so short that a few
tenths of a millisecond show: what processes differ by is as much as what profiling costs there.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]
sys.path.append(str(Path(__file__).resolve().parent))

from measure import Claim  # noqa: E402

from penstock import profile  # noqa: E402

_LEFT_OUT = 5  # steps of a turn: as many as the loaders have slots
_STEPS = 4  # of a turn, behind them
ACT = "imitate_episodes.py (ACT)"
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class EnoughStepsError(Exception):
    """All turns are over."""


class Turns:
    """Told when a step begins: it switches profiling, and keeps how long the steps of each turn take."""

    def __init__(self, pairs: int, steps: int) -> None:
        self._modes = [mode for pair in range(pairs) for mode in ((False, True) if pair % 2 == 0 else (True, False))]
        self._steps = steps + _LEFT_OUT
        self._seen = 0
        self._last = (0.0, 0.0)
        self.wall_s: list[list[float]] = [[] for _ in self._modes]
        self.cpu_s: list[list[float]] = [[] for _ in self._modes]

    def step(self) -> None:
        turn, within = divmod(self._seen, self._steps)
        now = (time.perf_counter(), time.process_time())
        if self._seen:
            before, place = divmod(self._seen - 1, self._steps)
            if place >= _LEFT_OUT:
                self.wall_s[before].append(now[0] - self._last[0])
                self.cpu_s[before].append(now[1] - self._last[1])
        if turn == len(self._modes):
            profile.enable()
            raise EnoughStepsError
        if within == 0:
            profile.enable() if self._modes[turn] else profile.disable()
        self._seen += 1
        self._last = (time.perf_counter(), time.process_time())

    def ratios(self, seconds: list[list[float]]) -> list[float]:
        """A step with profiling over one without, of each pair of turns."""
        medians = [statistics.median(each) for each in seconds]
        ratios = []
        for first in range(0, len(medians), 2):
            off, on = medians[first : first + 2] if not self._modes[first] else medians[first : first + 2][::-1]
            ratios.append(on / off)
        return ratios

    @property
    def step_ms(self) -> float:
        return 1e3 * statistics.median(s for each, mode in zip(self.wall_s, self._modes, strict=True) for s in each
                                       if not mode)  # fmt: skip


def step_claims(directory: Path, quick: bool) -> list[Claim]:
    """A small model over a loader that decodes, and over one that copies from a view; then ACT by its example."""
    processes, pairs = (3, 10) if quick else (9, 24)
    reported: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNS}
    for _ in range(processes):
        for name in RUNS:
            reported[name].append(_in_process(name, directory, pairs))
    print(f"\n{'training step':<32}{'ms':>8}{'pairs':>8}{'overhead':>10}{'ms':>7}{'of processes':>18}{'CPU time':>10}")
    claims = []
    for name, found in reported.items():
        wall, cpu = (_percent([ratio for each in found for ratio in each[key]]) for key in ("wall", "cpu"))
        step_ms = statistics.median(each["step_ms"] for each in found)
        of_each = [_percent(each["wall"]) for each in found]
        spread = f"{min(of_each):.2f}…{max(of_each):.2f}%"
        longer_ms = wall / 100 * step_ms
        print(
            f"{name:<32}{step_ms:>8.1f}{processes:>4}×{pairs:<3}{wall:>9.2f}%{longer_ms:>7.2f}{spread:>18}{cpu:>9.2f}%"
        )
        if name == ACT:
            claims.append(Claim(f"% longer steps with profiling: {name}", round(wall, 2), "<= 1"))
    return claims


def _percent(ratios: list[float]) -> float:
    """How much longer steps with profiling are."""
    return (statistics.median(ratios) - 1) * 100


def _in_process(name: str, directory: Path, pairs: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, name, str(directory), str(pairs)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"{name} exited with {ran.returncode}:\n{ran.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    name, directory, pairs = sys.argv[1:]
    import torch

    torch.set_num_threads(1)
    turns = Turns(int(pairs), _STEPS)
    with contextlib.suppress(EnoughStepsError):
        RUNS[name](Path(directory), turns)
    found = {"wall": turns.ratios(turns.wall_s), "cpu": turns.ratios(turns.cpu_s), "step_ms": turns.step_ms}
    print(json.dumps(found))


def _episodes(directory: Path) -> Path:
    """The demo's episodes, made where they are not there."""
    from penstock._src.demo.act import ReachScript, write_episodes

    data = directory / "episodes"
    if not data.exists():
        write_episodes(data, ReachScript())
    return data


def _small(directory: Path, view: str, turns: Turns) -> None:
    """A convolution net on the images of the demo's four cameras."""
    import torch
    from torch import nn

    import penstock

    with (
        penstock.open(_episodes(directory)) as store,
        penstock.Loader(store, penstock.Window(action=range(10)), 16, (96, 128), view=view, threads=1) as loader,
    ):
        cameras = [name for name, column in store.columns.items() if column.kind == "image"]
        layers = [nn.Conv2d(3 * len(cameras), 16, 5, 4), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*layers, nn.LazyLinear(10 * store.column("action").shape[0]))
        optimizer: Any = None
        while True:
            for batch in loader:
                turns.step()
                images = torch.cat([batch[name] for name in cameras], 1).float().div_(255)
                found = model(images)
                optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-4)
                loss = nn.functional.l1_loss(found, batch["action"].flatten(1).float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


def _act(directory: Path, turns: Turns) -> None:
    """The example's own trainer, told when its steps begin."""
    sys.path.insert(0, str(_EXAMPLES))
    from act.data import Data
    from act.loading import Loading
    from act.settings import Settings
    from act.train import Trainer

    class Told(Trainer):
        def _train_step(self, batch: Any) -> None:
            turns.step()
            super()._train_step(batch)

    sizes: dict[str, Any] = {"hidden_dim": 64, "dim_feedforward": 128, "enc_layers": 1, "dec_layers": 1, "heads": 4}
    settings = Settings(
        "overhead", directory / "ckpt", batch_size=4, num_epochs=10**6, backbone_width=8, log_every=0,
        val_every=10**6, table_every=10**6, **sizes,
    )  # fmt: skip
    settings.ckpt_dir.mkdir(exist_ok=True)
    loading = Loading((96, 128), "1GiB", "auto", "1", "cpu", "off")
    words = (settings.chunk, settings.batch_size, 0, loading, (), 0.2)
    with Data(_episodes(directory), *words) as data, contextlib.redirect_stdout(io.StringIO()):
        Told(settings, data).run()


RUNS = {
    "small model, decoding": lambda directory, turns: _small(directory, "off", turns),
    "small model, view in memory": lambda directory, turns: _small(directory, "ram", turns),
    ACT: _act,
}

if __name__ == "__main__":
    main()
