"""Who asks: credentials of variables, files, programs that give keys, and of the calling program."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from penstock._src.system.files.remote import credentials
from penstock._src.system.files.remote.client import client_of, forget_clients
from penstock._src.system.files.remote.settings import configure, settings
from penstock.errors import ConfigError, RemoteDenied
from tests.remote.server import RangeServer

DATA = bytes(range(256)) * 200


def test_credentials_of_files_and_variables(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.path.join(os.environ["HOME"], ".aws")
    os.makedirs(home)
    with open(f"{home}/credentials", "w", encoding="utf-8") as file:
        file.write("[default]\naws_access_key_id = d\naws_secret_access_key = s\n[lab]\naws_access_key_id = lab\n"
                   "aws_secret_access_key = ls\n")  # fmt: skip
    with open(f"{home}/config", "w", encoding="utf-8") as file:
        file.write("[profile lab]\nregion = eu-west-1\nendpoint_url = http://lab:9000\n")
    found = credentials.s3_options({}, metadata=False)
    assert (found["access_key_id"], found["region"]) == ("d", "us-east-1") and "skip_signature" not in found
    monkeypatch.setenv("AWS_PROFILE", "lab")
    found = credentials.s3_options({}, metadata=False)
    assert (found["access_key_id"], found["region"], found["endpoint"]) == ("lab", "eu-west-1", "http://lab:9000")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3")
    found = credentials.s3_options({"secret_access_key": "given"}, metadata=False)
    assert (found["access_key_id"], found["secret_access_key"], found["endpoint"]) == ("e", "given", "http://s3")


def test_without_credentials_nothing_is_signed_and_no_metadata_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (credentials.s3_options, credentials.gs_options):
        assert options({}, metadata=False)["skip_signature"] is True
        assert "skip_signature" not in options({}, metadata=True)
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        credentials.az_options({}, metadata=False)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=a2V5;BlobEndpoint=http://e")
    found = credentials.az_options({}, metadata=False)
    assert found == {"account_name": "acc", "account_key": "a2V5", "endpoint": "http://e"}
    assert not settings().cloud_metadata
    monkeypatch.setenv("PENSTOCK_CLOUD_METADATA", "1")
    assert settings().cloud_metadata


def test_a_key_goes_with_its_own_token(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("b", "x", DATA)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "of the shell")
    given = {"access_key_id": "test-key", "secret_access_key": "test-secret"}
    for token in (None, "its own"):
        configure("s3://b", **given, **({} if token is None else {"session_token": token}))
        client_of("s3://b/x")[0].head("x")
        assert server.requests[-1].headers.get("x-amz-security-token") == token
    assert credentials.s3_options({"region": "r"}, metadata=False)["session_token"] == "of the shell"


def a_profile(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only credentials that there are."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    home = Path(os.environ["HOME"], ".aws")
    home.mkdir(parents=True, exist_ok=True)
    (home / "config").write_text(f"[profile lab]\n{words}\n", encoding="utf-8")
    monkeypatch.setenv("AWS_PROFILE", "lab")


def a_program(tmp_path: Path, said: str) -> str:
    """A program that notes each call and prints keys, or what else `said` is."""
    path = tmp_path / "keys.sh"
    path.write_text(f'#!/bin/sh\necho called with "$@" >> "{tmp_path}/calls"\n{said}\n', encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def printed_keys(expires: str = "") -> str:
    keys = {"Version": 1, "AccessKeyId": "test-key", "SecretAccessKey": "test-secret", "SessionToken": "a token"}
    return f"echo '{json.dumps(keys | ({'Expiration': expires} if expires else {}))}'"


def test_a_program_of_the_profile_gives_the_keys(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("b", "x", DATA)
    program = a_program(tmp_path, printed_keys("2099-01-01T00:00:00Z"))
    a_profile(f'credential_process = {program} "one word"', monkeypatch)
    client, key = client_of("s3://b/x")
    for _ in range(3):
        assert client.read(key, 0, 10) == DATA[:10]
    assert server.requests[-1].headers["x-amz-security-token"] == "a token"
    assert set((tmp_path / "calls").read_text().splitlines()) == {"called with one word"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert "credential_process" not in credentials.s3_options({}, metadata=False)


def test_keys_that_expire_are_asked_for_again_and_a_refusal_is_named(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("b", "x", DATA)
    a_profile(f"credential_process = {a_program(tmp_path, printed_keys('2020-01-01T00:00:00+00:00'))}", monkeypatch)
    client, key = client_of("s3://b/x")
    client.read(key, 0, 10)
    a_program(tmp_path, "echo 'Token has expired: run aws sso login' >&2; exit 255")
    with pytest.raises(RemoteDenied, match="failed: Token has expired: run aws sso login"):
        client.read(key, 0, 10)
    forget_clients()
    with pytest.raises(ConfigError, match="failed: Token has expired: run aws sso login"):
        client_of("s3://b/x")
    a_program(tmp_path, "echo hello")
    with pytest.raises(ConfigError, match="printed no keys"):
        client_of("s3://b/x")


@pytest.mark.parametrize("words", ["sso_session = lab", "role_arn = arn:aws:iam::1:role/r\nsource_profile = lab"])
def test_the_tool_of_aws_signs_in(
    words: str, server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("b", "x", DATA)
    a_profile(f"{words}\naws_access_key_id = of the source\naws_secret_access_key = s", monkeypatch)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if shutil.which("aws") is None:
        with pytest.raises(ConfigError, match=r"export-credentials.* is not there") as caught:
            client_of("s3://b/x")
        assert "AWS CLI" in (caught.value.hint or "")
    os.rename(a_program(tmp_path, printed_keys()), tmp_path / "aws")
    assert client_of("s3://b/x")[0].read("x", 0, 10) == DATA[:10]
    assert "configure export-credentials --profile lab --format process" in (tmp_path / "calls").read_text()
