"""`Budget`: every large buffer is reserved by name before it is made.

A number of bytes that the parts of a run share. What does not fit is refused with the numbers. `for_process` counts the
interpreter, too. The budget of a loader is for what the loader makes.

    budget = Budget.for_process(parse_bytes("512MiB"))
    with budget.reserve("fetch buffer", 16 * MIB):
        ...
"""

from __future__ import annotations

import operator
import threading

from penstock._src.system.limits import read_memory_limit
from penstock._src.system.memory import rss_bytes
from penstock._src.system.units import GIB, MIB, format_bytes, parse_bytes
from penstock.errors import BudgetExceeded, UsageError

AUTO_LEAST_BYTES = 256 * MIB
AUTO_MOST_BYTES = 2 * GIB


class Reservation:
    """Bytes held in a budget under a name until `release`, which any thread may call, more than once."""

    __slots__ = ("_budget", "n_bytes", "name")

    def __init__(self, budget: Budget, name: str, n_bytes: int) -> None:
        self._budget = budget
        self.n_bytes = n_bytes  # held now; 0 after the release
        self.name = name

    def resize(self, n_bytes: int) -> None:
        """Hold `n_bytes` from now on. Growth that does not fit is refused and changes nothing."""
        self._budget._resize(self, n_bytes)

    def release(self) -> None:
        """Give all of it back."""
        self._budget._resize(self, 0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Budget:
    """A number of bytes that all parts of a run share."""

    def __init__(self, limit_bytes: int | str, *, source: str = "given") -> None:
        size = parse_bytes(limit_bytes) if isinstance(limit_bytes, str) else limit_bytes
        self.limit_bytes = _whole_number("a budget", size)
        if not self.limit_bytes:
            raise UsageError("a memory budget of 0 bytes holds nothing", hint="try 512MiB, or auto")
        self.source = source
        self._lock = threading.RLock()  # a buffer that the garbage collector ends gives back in any thread
        self.used_bytes = 0  # reserved now
        self.peak_bytes = 0  # the most that was ever reserved at once
        self._held: dict[str, int] = {}

    @classmethod
    def parse(cls, value: str | int | Budget = "auto") -> Budget:
        """A budget from "512MiB", a number of bytes, or "auto": half of the memory that is free by the real limits,
        at least 256 MiB, at most 2 GiB."""
        if isinstance(value, Budget):
            return value
        if _is_auto(value):
            memory = read_memory_limit()
            limit_bytes = min(max(memory.available_bytes // 2, AUTO_LEAST_BYTES), AUTO_MOST_BYTES)
            free = f"{format_bytes(memory.available_bytes)} free by {memory.available_ruled_by}"
            return cls(limit_bytes, source=f"auto: {free}")
        return cls(parse_bytes(value))

    @classmethod
    def for_process(cls, value: str | int | Budget = "auto") -> Budget:
        """The same, with what the interpreter holds now reserved for good under the name "interpreter".

        "auto" is half of what is free, which leaves out what is held: in a notebook that may be more than all of it.
        """
        budget = cls.parse(value)
        if "interpreter" not in budget.by_name():
            held_bytes = rss_bytes()
            if _is_auto(value):
                budget.limit_bytes += held_bytes
            budget.reserve("interpreter", held_bytes)
        return budget

    @property
    def free_bytes(self) -> int:
        """How much could be reserved now."""
        return self.limit_bytes - self.used_bytes

    def by_name(self) -> dict[str, int]:
        """Who holds how much, the largest first."""
        with self._lock:
            return self._holders()

    def _holders(self) -> dict[str, int]:
        return dict(sorted(self._held.items(), key=lambda item: (-item[1], item[0])))

    def reserve(self, name: str, n_bytes: int) -> Reservation:
        """Hold `n_bytes` under `name`; what does not fit raises BudgetExceeded."""
        reservation = Reservation(self, name, 0)
        self._resize(reservation, n_bytes)
        return reservation

    def _resize(self, reservation: Reservation, n_bytes: int) -> None:
        name = reservation.name
        n_bytes = _whole_number(name, n_bytes)
        with self._lock:
            growth = n_bytes - reservation.n_bytes
            if growth > self.free_bytes:
                raise self._exceeded(name, growth)
            reservation.n_bytes = n_bytes
            self.used_bytes += growth
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self._held[name] = self._held.get(name, 0) + growth
            if not self._held[name]:
                del self._held[name]

    def _exceeded(self, name: str, n_bytes: int) -> BudgetExceeded:
        holders = list(self._holders().items())
        held = ", ".join(f"{who} {format_bytes(size)}" for who, size in holders[:6]) or "nobody"
        more = f", {len(holders) - 6} more" if len(holders) > 6 else ""
        # To whole 16 MiB: a hint with a margin, not a threshold that fails by one byte.
        enough = f"{-(-(self.used_bytes + n_bytes) // (16 * MIB)) * 16}MiB"
        return BudgetExceeded(
            f"the memory budget of {format_bytes(self.limit_bytes)} cannot hold {name}: "
            f"needs {format_bytes(n_bytes)}, {format_bytes(self.free_bytes)} free (held by {held}{more})",
            size=n_bytes,
            limit=self.limit_bytes,
            hint=f'give a larger budget, for example memory="{enough}" (of a command: --memory {enough})',
        )


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == "auto"


def _whole_number(name: str, n_bytes: int) -> int:
    """`n_bytes` as a Python int (numpy's integers are welcome), refused when it is no size."""
    try:
        whole = operator.index(n_bytes)
    except TypeError:
        whole = -1
    if whole < 0 or isinstance(n_bytes, bool):
        raise UsageError(f"{name}: expected a whole number of bytes from 0, not {n_bytes!r}")
    return whole
