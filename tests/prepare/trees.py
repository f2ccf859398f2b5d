"""Folders in the public layouts, with files that hold a few bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

NAMES = ("000001", "000002", "000003")
TRAIN, TEST = ("GOPR0372_07_00", "GOPR0374_11_00"), ("GOPR0384_11_05",)
SEQUENCES = {"train": TRAIN, "test": TEST}


def fill(folder: Path, suffix: str, names: Iterable[str] = NAMES) -> None:
    """One file per name; its bytes say where it lies."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / f"{name}{suffix}").write_bytes(f"{folder.parent.name}/{folder.name}/{name}".encode())


def spk_gopro(root: Path, blur: str = "blur_gamma") -> tuple[Path, Path]:
    """GOPRO_Large and GOPRO_Large_spike_seq."""
    images, spikes = root / "GOPRO_Large", root / "GOPRO_Large_spike_seq"
    for split, sequences in SEQUENCES.items():
        for name in sequences:
            fill(images / split / name / blur, ".png")
            fill(images / split / name / "sharp", ".png")
            fill(spikes / split / name / "spike", ".dat")
    return images, spikes


def s_sdm(root: Path) -> Path:
    """S-SDM's GOPRO."""
    for split, sequences in SEQUENCES.items():
        for name in sequences:
            fill(root / "GOPRO" / split / "blur_data" / name, ".png")
            fill(root / "GOPRO" / split / "sharp_data" / name, ".png")
            fill(root / "GOPRO" / split / "spike_data" / name, ".dat")
    return root / "GOPRO"


def listing(root: Path) -> dict[str, bytes]:
    """Every file below a folder, links followed, with its bytes."""
    found: dict[str, bytes] = {}
    for split in ("train", "test"):
        for part in sorted((root / split).glob("*/*")):
            for path in sorted(part.iterdir()):
                found[f"{split}/{part.parent.name}/{part.name}/{path.name}"] = path.read_bytes()
    return found
