"""The folder `compat/`: its table is complete, pytest collects nothing there, imports and links work as written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.compat_folder.folder import REPOSITORY, copy_of_the_folder, typed
from tests.load.replay_files import write_replay
from tests.prepare.trees import listing, spk_gopro

COMPAT = REPOSITORY / "compat"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_of_the_folder(tmp_path)


def test_the_table_names_every_file() -> None:
    table = (COMPAT / "README.md").read_text(encoding="utf-8")
    modules = {name.replace(".", "/") + ".py" for name in re.findall(r"`from ([\w.]+) import", table)}
    named = set(re.findall(r"[\w/]+\.(?:py|yaml)", table)) | modules
    files = {str(path.relative_to(COMPAT)) for path in COMPAT.rglob("*") if path.suffix in (".py", ".yaml")}
    assert sorted(files - named - {"conftest.py"}) == []
    assert sorted(name for name in named - files if not (REPOSITORY / name).exists()) == []


def test_each_file_is_a_few_lines() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in COMPAT.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 40} == {}


def test_pytest_takes_none_of_them_for_tests(folder: Path) -> None:
    ran = typed(folder, "python -m pytest -q -p no:cacheprovider --collect-only .")
    assert ran.returncode == 5, ran.stdout + ran.stderr  # 5: nothing was collected


def test_the_replay_buffer_is_imported_as_written(folder: Path, tmp_path: Path) -> None:
    code = """
from algos.utils_multimodal import MultimodalReplayBuffer
buffer = MultimodalReplayBuffer(
    action_dim=4,
    joint_dim=16,
    max_size=int(1e6)
)
buffer.load_from_hdf5('offline_dataset.hdf5')
left_img, right_img, global_img, joint, action, \\
next_left_img, next_right_img, next_global_img, next_joint, \\
reward, not_done = buffer.sample(batch_size=8)
print(tuple(left_img.shape), tuple(next_joint.shape), tuple(not_done.shape))
buffer.close()
"""
    write_replay(folder / "offline_dataset.hdf5")
    (folder / "train.py").write_text(code, encoding="utf-8")
    ran = typed(folder, "python train.py")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "(8, 3, 224, 224) (8, 16) (8, 1)"


def test_the_folder_of_links_is_made_as_written(folder: Path) -> None:
    spk_gopro(folder / "data" / "raw" / "gopro_spike", blur="blur")
    line = "python scripts/prepare_gopro_spike_structure.py --use_symlinks"
    for _ in range(2):
        ran = typed(folder, line)
        assert ran.returncode == 0, ran.stderr
    made = folder / "data" / "processed" / "gopro_spike_unified"
    assert len(listing(made)) == 27
    assert os.readlink(made / "train" / "GOPR0372_07_00" / "spike").startswith("../../../../raw/")
    none = typed(folder, line + " --spike_root data/nowhere")
    assert (none.returncode, "data/nowhere is not a directory" in none.stderr) == (2, True)
