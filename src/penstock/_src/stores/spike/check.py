"""The doctor of a spike data set: pairs of files, sizes, images that can be decoded, spikes that are not all alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock._src.formats.findings import Findings
from penstock._src.media.image import codec
from penstock._src.media.spike.files import read_rows
from penstock._src.media.spike.layout import SpikeLayout
from penstock._src.stores.spike.sequence import SpikeSequence
from penstock._src.stores.spike.store import SpikeStore
from penstock.errors import PenstockError

_SAMPLES = 4  # rows of a sequence that are read where not all are


def doctor(path: Path, findings: Findings, *, full: bool, skew_ns: int) -> None:
    """What `penstock doctor` finds. Sizes of all files are checked, the content of some rows, or of all with `full`."""
    try:
        store = SpikeStore(path, on_missing="skip")
    except PenstockError as error:
        findings.error("open", path, error.message, error.hint)
        return
    for reason, count in store.skipped.items():
        first = store.first_skipped[reason]
        findings.error("pairs", "", f"{count:,} rows cannot be used: {reason}; first: {first}")
    for sequence in store.sequences:
        step = 1 if full else -(-sequence.frames // _SAMPLES)
        for place in range(0, sequence.frames, step):
            check_row(sequence, place, findings)
        findings.counted["sequences"] += 1
        findings.counted["rows"] += sequence.frames
    findings.add("info", "layout", path, "; ".join(list(store.notes)[:2]))
    findings.counted["bytes"] = store.stored_bytes


def check_row(sequence: SpikeSequence, place: int, findings: Findings) -> None:
    """Decode the images of a row and look at its spikes."""
    size = (sequence.image_height, sequence.image_width)
    for files in (sequence.blur, sequence.sharp):
        if files is None:
            continue
        try:
            actual = codec.decode(files[place].read_bytes()).shape[:2]
        except (PenstockError, OSError) as error:
            findings.error("images", files[place], getattr(error, "message", str(error)))
            continue
        findings.counted["images decoded"] += 1
        if actual != size:
            message = f"{actual[0]}×{actual[1]} pixels, the first image of {sequence.name} has {size[0]}×{size[1]}"
            findings.error("image sizes", files[place], message)
    try:
        odd = odd_spikes(read_rows(sequence.spike[place], sequence.layout), sequence.layout)
    except PenstockError as error:
        findings.error("spikes", sequence.spike[place], error.message, error.hint)
        return
    findings.counted["spike files read"] += 1
    if odd:
        findings.add("loss", "spikes", sequence.spike[place], odd)


def odd_spikes(data: np.typing.NDArray[np.uint8], layout: SpikeLayout) -> str | None:
    """What is odd about the values of a spike file, with the likely cause; None where nothing is."""
    if not data.any():
        return (
            "every bit is 0: no pixel ever fires. The camera was off or covered, or the file was allocated and never "
            "written; a layout that is not the file's own does not give this"
        )
    if data.min() == (255 if layout.packing == "packed" else 1):
        return (
            "every bit is 1: each pixel fires in every frame. The scene is over-exposed, or the file is erased memory "
            "and no recording"
        )
    if layout.packing == "uint8" and data.max() > 1:
        return (
            f"values up to {data.max()}, while one byte per pixel is 0 or 1: these are packed bits; layout=packed "
            "reads them"
        )
    return None
