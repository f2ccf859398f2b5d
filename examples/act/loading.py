"""The two loaders of a run: one trains, one validates, and both live on the memory that was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.errors import BudgetExceeded

from .texts import format_mib

_VALIDATION_SHARE = 4  # a quarter of the memory is for validation …
_VALIDATION_BATCH = 16  # … whose batches are small: their size changes nothing in the result


@dataclass(frozen=True)
class Loading:
    """How batches are loaded; none of it changes the result, but for `image_size`."""

    image_size: tuple[int, int] | None = None
    memory: str = "2GiB"
    view: str = "auto"
    threads: str = "auto"
    device: str = "cpu"
    gpu_decode: str = "auto"


def make_loaders(
    stores: Sequence[penstock.Store], loading: Loading, batch_size: int, **common: Any
) -> tuple[penstock.Loader, penstock.Loader]:
    """For training (shuffled) and for validation."""
    memory = _bytes(loading.memory)
    val_bytes = memory // _VALIDATION_SHARE
    common |= {
        "image_size": loading.image_size, "threads": loading.threads, "device": loading.device, "view": loading.view,
        "gpu_decode": {"auto": "auto", "on": True, "off": False}[loading.gpu_decode],
    }  # fmt: skip

    def train() -> penstock.Loader:
        return penstock.Loader(stores[0], batch_size=batch_size, memory=memory - val_bytes, **common)

    def val() -> penstock.Loader:
        small = min(batch_size, _VALIDATION_BATCH)
        return penstock.Loader(stores[1], batch_size=small, memory=val_bytes, shuffle=False, **common)

    made, refused = _tried((train, val))
    if refused:
        for loader in made:
            loader.close()
        raise _refusal(loading, memory, refused) from next(iter(refused.values()))
    return made[0], made[1]


def _tried(
    makers: Sequence[Callable[[], penstock.Loader]],
) -> tuple[list[penstock.Loader], dict[str, BudgetExceeded]]:
    """All of them, so that what both need is known."""
    made, refused = [], {}
    for name, make in zip(("training", "validation"), makers, strict=True):
        try:
            made.append(make())
        except BudgetExceeded as error:
            refused[name] = error
    return made, refused


def _refusal(loading: Loading, memory: int, refused: dict[str, BudgetExceeded]) -> BudgetExceeded:
    """In the words of the command line: what was given, who gets how much of it, and what would do."""
    val_bytes = memory // _VALIDATION_SHARE
    given = loading.memory if loading.memory != "auto" else f"auto ({format_mib(memory)})"
    needs = {name: error.size for name, error in refused.items()}
    told = " and ".join(f"{name} needs {format_mib(size)}" for name, size in needs.items())
    enough = max(
        needs.get("validation", 0) * _VALIDATION_SHARE,
        -(-needs.get("training", 0) * _VALIDATION_SHARE // (_VALIDATION_SHARE - 1)),
    )
    return BudgetExceeded(
        f"--memory {given} is too little: {format_mib(memory - val_bytes)} of it are for training and a quarter, "
        f"{format_mib(val_bytes)}, for validation, but {told}",
        size=enough,
        limit=memory,
        hint=f"--memory {-(-enough >> 20) + 1}MiB, a smaller --batch_size, --chunk_size or --image_size",
    )


def _bytes(memory: str) -> int:
    return penstock.Budget.parse(memory).limit_bytes
