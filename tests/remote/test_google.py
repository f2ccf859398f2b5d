"""`gs://` against the range server: Google's conditions are generations, the rest of its XML API is that of S3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.remote import behaviour
from tests.remote.server import RangeServer


@pytest.fixture
def bucket(server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket, and a service account that asks nobody for a token."""
    words = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
    account = tmp_path / "account.json"
    account.write_text(json.dumps({**words, "gcs_base_url": server.url}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    server.access_key = None
    return "gs://b"


def test_reading_listing_and_conditions(bucket: str) -> None:
    behaviour.check_reading_listing_and_conditions(bucket)


def test_a_set_is_opened_checked_and_loaded(tmp_path: Path, bucket: str) -> None:
    behaviour.check_a_set_is_opened_checked_and_loaded(tmp_path, bucket)
