"""docs/loading.md, stores.md and views.md: every Python block runs, one after the other, over small data so named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.demo.recording import Script, write_recording
from tests.stores import hdf5_files as files

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```python(?P<needs>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`datasets/run` as the demo makes it, `aloha/`, `demos.hdf5`, `replay.hdf5`."""
    import penstock

    root = tmp_path_factory.mktemp("docs")
    write_recording(root / "run.bag", Script(seconds=5, width=64, height=48))
    penstock.convert(root / "run.bag", root / "datasets" / "run", task="stack the cups")
    (root / "aloha").mkdir()
    for number in range(2):
        files.aloha(root / "aloha" / f"episode_{number}.hdf5", 9 + number, number)
    files.robomimic(root / "demos.hdf5")
    files.replay(root / "replay.hdf5")
    return root


@pytest.mark.parametrize("name", ["loading.md", "stores.md", "views.md"])
def test_every_python_block_runs(name: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    for each in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(each, raising=False)
    blocks = list(_BLOCK.finditer((DOCS / name).read_text(encoding="utf-8")))
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        if "torch" in block["needs"]:
            pytest.importorskip("torch")
        line = (DOCS / name).read_text(encoding="utf-8")[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block["text"], name, "exec"), names)


def test_shapes_are_those_that_the_page_says(place: Path) -> None:
    import penstock

    with penstock.open(place / "datasets" / "run") as store:
        window = penstock.Window(action=range(20))
        with penstock.Loader(store, window, batch_size=64, output="numpy", memory="512MiB") as loader:
            batch = next(iter(loader))
            assert batch["observation.images.cam_h"].shape == (64, 3, 224, 224)
            assert batch["action"].shape == (64, 20, 16) and batch["action_is_pad"].shape == (64, 20)
            assert batch["index"].shape == (64,) and isinstance(batch["task"], list) and len(batch["task"]) == 64
            assert str(batch["observation.images.cam_h"].dtype) == "uint8"
