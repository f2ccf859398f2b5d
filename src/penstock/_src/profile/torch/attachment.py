"""What speaks for an attached DataLoader: how it is set up, what it gave, and the same one varied.

The DataLoader itself keeps the methods that its class has, and no others.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock._src.profile.loader_info import TORCH_LOADER, LoaderInfo
from penstock._src.profile.record.layout import B_RESET_NS
from penstock._src.profile.record.loader_pass import loader_id
from penstock._src.profile.record.registry import remember
from penstock._src.profile.record.spans import is_enabled, own_buffer
from penstock._src.system.limits import read_memory_limit
from penstock.errors import UsageError

FETCH_NS = "fetch_ns of loader {}"
"""Counter: what samples and batches of one loader took."""

_PATIENCE_S = 60.0  # for a batch of workers that are only tried
_MOST_COUNTED = 32  # loaders one by one: some code makes a new one for every epoch, and names take room
_taken: dict[int, set[str]] = {}  # names of counters, by the reset since which they are


def _free_counter() -> str:
    """A name that no loader has had since the last reset, nor has while it lives; "" where too many are taken."""
    reset_ns = own_buffer().board_words[B_RESET_NS]
    if reset_ns not in _taken:
        _taken.clear()
        _taken[reset_ns] = {each.counter for each in list(_attachments.values())}
    names = map(FETCH_NS.format, range(1, _MOST_COUNTED + 1))
    found = next((name for name in names if name not in _taken[reset_ns]), "")
    _taken[reset_ns].add(found)
    return found


class Attachment:
    """A DataLoader, while it lives and as it was; what its passes gave since the last reset, and how long each but the
    very first let wait."""

    def __init__(self, loader: Any, *, is_counted: bool = True) -> None:
        self._loader = weakref.ref(loader)
        self._info = LoaderInfo(kind=TORCH_LOADER)
        self.serial = loader_id(loader)
        """The number of the loader that it speaks for."""
        self.counter = _free_counter() if is_counted and is_enabled() else ""
        self.is_known = False
        self._has_begun = False
        self._reset_ns = -1
        self._batches = self._starts = self._start_wait_ns = 0
        self._look_at(loader)

    def _look_at(self, loader: Any) -> None:
        """Remember how it is set up, should it be gone when somebody asks."""
        try:
            self._info = _info(loader)
        except Exception:  # a data set of the user's own whose length is not known: nothing fails for it
            pass

    def begin(self, loader: Any) -> bool:
        """A pass begins; whether it is the first."""
        self._look_at(loader)
        is_first, self._has_begun = not self._has_begun, True
        return is_first

    def add(self, wait_ns: int, is_start: bool) -> None:
        """A batch came."""
        if is_enabled():
            self._clear_after_reset()
            self._batches += 1
            self._starts += is_start
            self._start_wait_ns += wait_ns if is_start else 0

    def _clear_after_reset(self) -> None:
        reset_ns = own_buffer().board_words[B_RESET_NS]
        if reset_ns != self._reset_ns:
            self._reset_ns = reset_ns
            self._batches = self._starts = self._start_wait_ns = 0

    def describe(self) -> LoaderInfo:
        """How it is set up, and what it gave since the last reset."""
        loader = self._loader()
        if loader is not None:
            self._look_at(loader)
        if is_enabled():
            self._clear_after_reset()
        return replace(
            self._info,
            batches_handed=self._batches,
            service_counter=self.counter,
            starts=self._starts,
            start_wait_ms=self._start_wait_ns / 1e6 / self._starts if self._starts else None,
            memory_available_bytes=None if loader is None else read_memory_limit().available_bytes,
        )

    def variant(self, **options: Any) -> Variant:
        """The same DataLoader with other num_workers, prefetch_factor, pin_memory, persistent_workers, or batch_size
        where torch itself makes batches of what its sampler gives."""
        return Variant(_varied(self._living(), options))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._living())

    def close(self) -> None:
        """End workers that persist."""
        if (loader := self._loader()) is not None:
            vars(loader)["_iterator"] = None

    def _living(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise UsageError("the DataLoader is gone", hint="keep it while it is looked at")
        return loader


class Variant(Attachment):
    """A DataLoader that was only made to be tried, and lives as long as this."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader, is_counted=False)
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from super().__iter__()
        except RuntimeError as error:
            if "DataLoader timed out" not in str(error):
                raise
            raise UsageError(
                f"no batch came from num_workers={self.loader.num_workers} within {self.loader.timeout:.0f} s: a data "
                "set that was used here may have threads or locks that a forked worker has not",
                hint="make such things in the worker, when the first sample is asked for",
            ) from error


_attachments: dict[int, Attachment] = {}


def attachment_of(loader: Any) -> Attachment:
    """The one of a loader, made at the first asking."""
    number = loader_id(loader)
    found = _attachments.get(number)
    if found is None:
        found = _attachments[number] = Attachment(loader)
        weakref.finalize(loader, _end, number).atexit = False
    return found


def _end(number: int) -> None:
    attachment = _attachments.pop(number, None)
    if attachment is not None and attachment.is_known:
        remember(attachment)


def _info(loader: Any) -> LoaderInfo:
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    kept = vars(loader).get("_IterableDataset_len_called")  # torch remembers who asked a stream, and warns later
    batches = _length(loader)
    vars(loader)["_IterableDataset_len_called"] = kept
    return LoaderInfo(
        kind=TORCH_LOADER,
        text=repr(loader),
        workers=loader.num_workers,
        batch_size=loader.batch_size,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        dataset=type(loader.dataset).__name__,
        is_stream=isinstance(loader.dataset, stream),
        samples=_length(loader.dataset),
        batches=batches,
    )


def _length(of: Any) -> int | None:
    """None where it is not known: a stream has none."""
    try:
        return len(of)
    except (TypeError, NotImplementedError):
        return None


def _varied(loader: Any, options: dict[str, Any]) -> Any:
    data = sys.modules["torch.utils.data"]
    known = {"num_workers", "prefetch_factor", "pin_memory", "persistent_workers"}
    known |= {"batch_size"} if type(loader.batch_sampler) is data.BatchSampler else set()
    if unknown := set(options) - known:
        raise UsageError(f"this DataLoader has no option {', '.join(sorted(unknown))} that can be varied")
    made = copy.copy(loader)
    own = vars(made)
    own.update({"_iterator": None, **_own_order(loader), **options})
    if "batch_size" in options:
        own["batch_sampler"] = data.BatchSampler(made.sampler, options["batch_size"], made.drop_last)
    if made.num_workers:
        own["prefetch_factor"] = made.prefetch_factor or 2  # torch's own choice
        own["timeout"] = made.timeout or _PATIENCE_S
    object.__setattr__(made, "__class__", type(loader))  # a copy of an attached one is an ordinary one
    return made


def _own_order(loader: Any) -> dict[str, Any]:
    """Samplers and the generator of their own, as they stand: a pass must not move those of the training."""
    generator = loader.generator
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    if generator is not None:
        memo[id(generator)] = type(generator)(device=generator.device).set_state(generator.get_state())
    found = {"generator": memo.get(id(generator))}
    for name in ("sampler", "batch_sampler"):
        try:
            found[name] = copy.deepcopy(getattr(loader, name), memo)
        except Exception:  # a sampler of the user's own that cannot be copied: it is asked itself
            found[name] = getattr(loader, name)
    return found
