"""Against a real Azurite, where PENSTOCK_AZURITE names its command `azurite-blob`: what Azure Blob Storage answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import urllib.request
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

import penstock
from penstock.errors import RemoteDenied
from tests.remote import behaviour

COMMAND = os.environ.get("PENSTOCK_AZURITE", "")
pytestmark = pytest.mark.skipif(not shutil.which(COMMAND), reason="PENSTOCK_AZURITE names no command")
ACCOUNT, KEY = "robots", base64.b64encode(b"a key for tests").decode()
VERSION = "2021-08-06"


@pytest.fixture(scope="module")
def azurite() -> Iterator[str]:
    """The URL of the account."""
    words = ["--blobPort", "PORT", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    environment = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with behaviour.started([COMMAND, "--blobHost", "127.0.0.1", *words], f"/{ACCOUNT}", environment) as url:
        yield f"{url}/{ACCOUNT}"


@pytest.fixture
def container(azurite: str, no_cloud: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty container of this test."""
    name = f"c{uuid.uuid4().hex}"
    now = formatdate(usegmt=True)
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{VERSION}\n{resource}"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": now, "x-ms-version": VERSION, "authorization": f"SharedKey {ACCOUNT}:{signature}"}
    address = f"{azurite}/{name}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=headers), timeout=10).close()
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={azurite};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    return f"az://{name}"


def test_reading_listing_and_conditions(container: str) -> None:
    behaviour.check_reading_listing_and_conditions(container)


def test_a_set_is_opened_checked_and_loaded(tmp_path: Path, container: str) -> None:
    behaviour.check_a_set_is_opened_checked_and_loaded(tmp_path, container)


@pytest.mark.parametrize("key", [base64.b64encode(b"another").decode(), ""])
def test_wrong_and_missing_keys_are_named(
    key: str, azurite: str, container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    for name, value in (("ACCOUNT_NAME", ACCOUNT), ("ACCOUNT_KEY", key), ("ENDPOINT", azurite)):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    with pytest.raises(RemoteDenied, match="may not read or list it" if key else "no credentials were found"):
        penstock.open(f"{container}/set")
