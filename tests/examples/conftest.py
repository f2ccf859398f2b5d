"""The examples are scripts, not a package: their directory is where they look for each other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._src.demo.act import ReachScript, write_episodes
from penstock._src.demo.spike import SpikeScript, write_spike_set

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

SCRIPT = ReachScript(episodes=4, rows=8, height=32, width=48)


@pytest.fixture(scope="package")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four short episodes of the synthetic task."""
    directory = tmp_path_factory.mktemp("act") / "reach"
    write_episodes(directory, SCRIPT)
    return directory


@pytest.fixture(scope="package")
def spike_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine small clips to train on, and three to validate."""
    directory = tmp_path_factory.mktemp("spike") / "clips"
    write_spike_set(directory, SpikeScript(train=3, test=1, images=7, height=48, width=64, travel_px=6))
    return directory


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch on one thread: small models are slower on more, and other tests run beside."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
