"""The command lines of the DataLoader guide, typed one after another in a folder with data where it expects them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock._src.demo.spike import SpikeScript, write_spike_set
from tests.compat_folder.folder import copy_of_the_folder, typed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with raw data of two sequences, laid out as Spk-GoPro has it; crops fit its small images."""
    folder = copy_of_the_folder(tmp_path_factory.mktemp("spike"))
    raw = folder / "data" / "raw" / "gopro_spike"
    script = SpikeScript(train=2, test=1, images=6, height=48, width=64, travel_px=6)
    write_spike_set(raw / "GOPRO_Large", script)
    for spikes in list((raw / "GOPRO_Large").glob("*/*/spike")):
        target = raw / "GOPRO_Large_spike_seq" / spikes.relative_to(raw / "GOPRO_Large")
        target.parent.mkdir(parents=True)
        spikes.rename(target)
    config = folder / "configs" / "deblur" / "vrt_spike_baseline.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("CROP_SIZE: 256", "CROP_SIZE: 32"), encoding="utf-8")
    return folder


def test_the_guide_from_the_first_command_to_the_last(folder: Path) -> None:
    before = typed(folder, "python test_realtime_loading.py")
    assert before.returncode != 0
    made = typed(folder, "python scripts/prepare_gopro_spike_structure.py --use_symlinks")
    assert made.returncode == 0, made.stderr
    ran = typed(folder, "python test_realtime_loading.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "✓ Dataset created successfully!",
        "✓ Found 4 samples",
        "✓ Sample loaded successfully!",
        "  - blur shape: torch.Size([5, 3, 48, 64])",
        "  - sharp shape: torch.Size([5, 3, 48, 64])",
        "  - spike_vox shape: torch.Size([5, 5, 24, 32])",
        "✓ Voxel data looks valid!",
    ]
    configured = typed(folder, "python test_dataloader_config.py")
    assert configured.returncode == 0, configured.stderr
    assert "workers   auto → " in configured.stdout and "prefetch  4 · validation 2" in configured.stdout
    words = typed(folder, "python test_dataloader_config.py DATALOADER.TOTAL_WORKERS=3 --gpus 3")
    assert "3 → 3 of" in words.stdout and "1 per GPU × 3 = 3" in words.stdout


def test_zero_voxels_are_reported_to_be_so(folder: Path) -> None:
    spikes = folder / "data" / "raw" / "gopro_spike" / "GOPRO_Large_spike_seq" / "train" / "DEMO0000_07_00" / "spike"
    kept = {path: path.read_bytes() for path in spikes.iterdir()}
    typed(folder, "python scripts/prepare_gopro_spike_structure.py --use_symlinks")
    for path, data in kept.items():
        path.write_bytes(bytes(len(data)))
    ran = typed(folder, "python test_realtime_loading.py")
    for path, data in kept.items():
        path.write_bytes(data)
    assert ran.returncode == 3 and "Voxels are all zero" in ran.stdout


def test_the_training_steps_and_the_status(folder: Path) -> None:
    pytest.importorskip("torch")
    typed(folder, "python scripts/prepare_gopro_spike_structure.py --use_symlinks")
    steps = typed(folder, "python test_training_loader.py")
    assert steps.returncode == 0, steps.stderr
    assert "[train] ========== 数据加载配置 ==========" in steps.stdout and "data_time=" in steps.stdout
    status = typed(folder, "python check_status.py --steps 3")
    assert status.returncode == 0, status.stderr
    parts = [line for line in status.stdout.splitlines() if line in ("configuration", "files", "sample", "steps")]
    assert parts == ["configuration", "files", "sample", "steps"]
    assert status.stdout.splitlines()[-1].startswith("fine: configs/deblur/")
