"""How many loading processes a training gets: a share of the CPUs granted, split over the GPUs of the machine.

>>> split_workers("auto", cpus=40, gpus=3)
WorkerPlan(cpus=40, gpus=3, total=32, train=10, val=2, warnings=())
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock._src.system.units import parse_workers
from penstock.errors import ConfigError

Workers = str | int
"""What people write: "auto" (0.8 × the CPUs granted), "cpu*0.9", or a number."""


@dataclass(frozen=True)
class WorkerPlan:
    """`train` and `val` are workers of one GPU's process; `total` is what was asked for on the whole machine."""

    cpus: float
    gpus: int
    total: int
    train: int
    val: int
    warnings: tuple[str, ...] = ()

    @property
    def train_total(self) -> int:
        return self.train * self.gpus

    @property
    def val_total(self) -> int:
        return self.val * self.gpus


def split_workers(
    total: Workers = "auto", *, cpus: float, gpus: int = 1, train: Workers | None = None, val: Workers | None = None
) -> WorkerPlan:
    """Workers per GPU, and warnings. Every GPU gets the same number, at least one, and the rest stays free.

    `train` and `val` replace what would be computed: a number is per GPU, as torch's `num_workers`; "auto" and
    "cpu*0.5" are shares of the machine, split like `total`. Without `val`, validation gets what training and one
    process per GPU leave, at least one worker per GPU and no more than training has.
    """
    gpus = max(1, gpus)
    wanted = _count(total, cpus, "DATALOADER.TOTAL_WORKERS")
    train_workers = _per_gpu(wanted, gpus) if train is None else _own(train, cpus, gpus, "DATALOADER.TRAIN_WORKERS")
    if train is not None and isinstance(total, int) and train_workers * gpus > wanted:
        raise ConfigError(
            f"DATALOADER.TRAIN_WORKERS: {train} is {train_workers * gpus} workers on {gpus} GPUs, "
            f"and DATALOADER.TOTAL_WORKERS: {total} allows {wanted} in all",
            hint=f"remove one of them, or write TRAIN_WORKERS: {wanted // gpus}",
        )
    if val is None:
        left = int(cpus) - train_workers * gpus - gpus
        val_workers = min(train_workers, _per_gpu(max(left, 1), gpus))
    else:
        val_workers = _own(val, cpus, gpus, "DATALOADER.VAL_WORKERS")
    return WorkerPlan(cpus, gpus, wanted, train_workers, val_workers, _warnings(cpus, gpus, train_workers, val_workers))


def _warnings(cpus: float, gpus: int, train: int, val: int) -> tuple[str, ...]:
    warnings = []
    for name, workers in (("TRAIN", train), ("VAL", val)):
        if workers * gpus > cpus:
            fits = max(int(cpus) // gpus, 1)
            advice = f"DATALOADER.{name}_WORKERS: {fits}" if fits < workers else "use fewer processes on this machine"
            warnings.append(
                f"{workers * gpus} {name.lower()} workers ({workers} per GPU × {gpus}) share {cpus:g} granted CPUs: "
                f"more workers than CPUs are slower, and each holds its own memory; {advice}"
            )
    return tuple(warnings)


def _per_gpu(total: int, gpus: int) -> int:
    return max(total // gpus, 1) if total else 0


def _own(value: Workers, cpus: float, gpus: int, what: str) -> int:
    count = _count(value, cpus, what)
    return count if str(value).strip().isdecimal() else _per_gpu(count, gpus)


def _count(value: Workers, cpus: float, what: str) -> int:
    """As `parse_workers`, and 0: the training process loads by itself."""
    if str(value).strip() == "0":
        return 0
    return parse_workers(value, cpus, what)
