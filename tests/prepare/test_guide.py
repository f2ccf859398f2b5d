"""The commands of docs/train/spike.md, one after another, on the synthetic set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock._src.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train" / "spike.md"


def test_from_a_folder_to_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = "--train 2 --test 1 --images 6 --size 48x64 --travel 6"
    assert main(["demo", "spike", "--out", "data/raw/spikes", *small.split()]) == 0
    made = (tmp_path / "data" / "raw" / "spikes" / "config.yaml").read_text(encoding="utf-8")
    unified = tmp_path / "data" / "processed" / "gopro_spike_unified"
    config = re.sub(r"ROOT: .*", f"ROOT: {unified}", made)
    (tmp_path / "deblur.yaml").write_text(config, encoding="utf-8")
    commands = re.findall(r"^penstock (.*?)(?: {2,}#.*)?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["prepare", "inspect", "doctor", "check", "prepare"]
    for command in commands:
        words = command.split() + (["--only", "configuration,files,sample"] if command.startswith("check") else [])
        assert main(words) == 0, command
    assert (unified / "train" / "DEMO0000_07_00" / "blur").is_symlink()
    assert len(list(unified.rglob("*.npy"))) == 18
    words = ["check", "deblur.yaml", "DATA.USE_PRECOMPUTED_VOXELS=true", "--only", "files,sample"]
    assert main(words) == 0
    assert "fine: deblur.yaml" in capsys.readouterr().out
