"""A range server on loopback, and an environment in which nothing else can be asked."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock._src.system.files.remote import register
from penstock._src.system.files.remote.client import forget_clients
from penstock._src.system.files.remote.held import held
from penstock._src.system.files.remote.settings import configure
from tests.remote.server import RangeServer

collect_ignore_glob = [] if importlib.util.find_spec("obstore") else ["test_*.py"]  # the extra `remote`
_CLOUD = ("AWS_", "AZURE_", "GOOGLE_", "HF_", "PENSTOCK_REMOTE", "PENSTOCK_CLOUD")


@pytest.fixture(autouse=True)
def no_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No credentials, no files of cloud tools; clients of other tests are forgotten."""
    for name in [name for name in os.environ if name.startswith(_CLOUD)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PENSTOCK_REMOTE", "")
    configure(timeout_s=60, connect_timeout_s=60, retries=3, retry_timeout_s=240)  # no limit of a busy machine
    forget_clients()
    register()
    held.clear()
    yield
    forget_clients()


@pytest.fixture
def server(no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """A server whose `s3://` addresses are read with its credentials."""
    with RangeServer() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        found.buckets["b"] = {}
        yield found
