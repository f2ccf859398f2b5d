"""Batches have the shapes that docs/start/first-training.md and docs/train/load.md show."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock._src.demo.recording import Script, write_recording


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`datasets/run` as the demo makes it."""
    import penstock

    root = tmp_path_factory.mktemp("docs")
    write_recording(root / "run.bag", Script(seconds=5, width=64, height=48))
    penstock.convert(root / "run.bag", root / "datasets" / "run", task="stack the cups")
    return root


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
