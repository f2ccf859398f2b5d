"""Against a real `moto_server`, where PENSTOCK_MOTO_SERVER names its command: what S3 itself answers."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.recordings import made
from tests.remote import behaviour

COMMAND = os.environ.get("PENSTOCK_MOTO_SERVER", "")
pytestmark = pytest.mark.skipif(not shutil.which(COMMAND), reason="PENSTOCK_MOTO_SERVER names no command")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with behaviour.started([COMMAND, "-H", "127.0.0.1", "-p", "PORT"], "/moto-api/") as url:
        yield url


@pytest.fixture
def bucket(moto: str, no_cloud: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """An empty bucket of this test."""
    for name, value in (("AWS_ENDPOINT_URL", moto), ("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s")):
        monkeypatch.setenv(name, value)
    name = f"b{abs(hash(request.node.name)) % 10**9}"
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT"), timeout=10).close()
    return f"s3://{name}"


def test_reading_listing_and_conditions(bucket: str) -> None:
    behaviour.check_reading_listing_and_conditions(bucket)


def test_a_set_is_opened_checked_and_loaded(tmp_path: Path, bucket: str) -> None:
    behaviour.check_a_set_is_opened_checked_and_loaded(tmp_path, bucket)


def test_recordings_are_converted(tmp_path: Path, bucket: str) -> None:
    made.bag(tmp_path / "run.bag")
    for number in range(2):
        behaviour.upload(tmp_path / "run.bag", f"{bucket}/day1/run_{number}.bag")
    penstock.convert(f"{bucket}/day1/*.bag", tmp_path / "out", jobs=1, overrides=made.WORDS)
    with penstock.open(tmp_path / "out") as store:
        assert len(store.episode_starts) == 3
