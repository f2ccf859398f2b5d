"""Who asks: options of a program, environment variables and the files of the cloud tools, in this order.

Nothing here sends a packet; a profile of AWS may name a program that gives the keys. Where no credentials are found,
requests go out unsigned: public buckets can be read so. The metadata service of a cloud is asked only where the
settings allow it.
"""

from __future__ import annotations

import configparser
import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError

KEY_PROGRAM = "credential_process"
"""The option that holds a command: it prints keys, for as long as they are valid."""
_KEY_PROGRAM_S = 60.0

_AWS_VARIABLES = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "request_payer": ("AWS_REQUEST_PAYER",),
}
# The program that started us was given an identity by its cluster: asking for it is what the variables say.
_AWS_ROLES = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
              "AWS_CONTAINER_CREDENTIALS_FULL_URI")  # fmt: skip
_BY_AWS_CLI = ("sso_session", "sso_start_url", "role_arn")  # of a profile: only its own tool signs in
_AZURE_VARIABLES = {
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
    "sas_key": ("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "client_id": ("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"),
    "client_secret": ("AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    "tenant_id": ("AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"),
    "token": ("AZURE_STORAGE_TOKEN",),
    "endpoint": ("AZURE_STORAGE_ENDPOINT",),
    "federated_token_file": ("AZURE_FEDERATED_TOKEN_FILE",),
}
_AZURE_SECRETS = ("account_key", "sas_key", "client_secret", "token", "federated_token_file")


def s3_options(given: Mapping[str, Any], *, metadata: bool) -> dict[str, Any]:
    """Options of a client for S3 and what speaks its language."""
    found: dict[str, Any] = {**_aws_profile(), **_from_environment(_AWS_VARIABLES)}
    if "access_key_id" in given:  # as below: a token belongs to one key
        found.pop("session_token", None)
    found |= given
    found.setdefault("region", "us-east-1")
    has_key = "access_key_id" in found and "secret_access_key" in found
    if has_key or found.get("skip_signature"):
        found.pop(KEY_PROGRAM, None)
    elif KEY_PROGRAM not in found and not metadata and not any(os.environ.get(name) for name in _AWS_ROLES):
        found.setdefault("skip_signature", True)
    return found


def client_words(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a client takes them. It would add the token of `AWS_SESSION_TOKEN` to a key that has none."""
    names = {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token"}
    config = {name: value for name, value in options.items() if name not in (*names, KEY_PROGRAM)}
    if KEY_PROGRAM in options:
        keys_of_program(options[KEY_PROGRAM])  # its error comes now, not with the first request
        return {"config": config, "credential_provider": lambda: keys_of_program(options[KEY_PROGRAM])}
    if not {"access_key_id", "secret_access_key"} <= set(options):
        return {"config": options}
    keys = {"token": None, "expires_at": None, **{names[name]: options[name] for name in names if name in options}}
    return {"config": config, "credential_provider": lambda: keys}


def keys_of_program(command: Sequence[str]) -> dict[str, Any]:
    """The keys that a program prints as JSON, as AWS defines it; asked for again when they expire."""
    name = f"the program that gives AWS keys ({shlex.join(command)})"
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_KEY_PROGRAM_S, check=True
        )
        answer = json.loads(done.stdout)
        expires = answer.get("Expiration")
        return {
            "access_key_id": answer["AccessKeyId"],
            "secret_access_key": answer["SecretAccessKey"],
            "token": answer.get("SessionToken"),
            "expires_at": None if expires is None else datetime.fromisoformat(expires.replace("Z", "+00:00")),
        }
    except FileNotFoundError:
        hint = "install version 2 of the AWS CLI, or set AWS_ACCESS_KEY_ID" if command[0] == "aws" else None
        raise ConfigError(f"{name} is not there", hint=hint) from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        raise ConfigError(f"{name} failed: {lines[-1] if lines else f'exit code {error.returncode}'}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{name} gave none within {_KEY_PROGRAM_S:.0f} s") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{name} printed no keys") from None


def gs_options(given: Mapping[str, Any], *, metadata: bool) -> dict[str, Any]:
    """Options of a client for Google Cloud Storage."""
    found: dict[str, Any] = {}
    for name in ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"):
        if os.environ.get(name):
            found["service_account"] = os.environ[name]
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or str(
        Path.home() / ".config" / "gcloud" / "application_default_credentials.json"
    )
    if not found and os.path.isfile(file):
        found["application_credentials"] = file
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        host = os.environ["STORAGE_EMULATOR_HOST"]
        found["base_url"] = host if "://" in host else f"http://{host}"
    found |= given
    if not metadata and not set(found) & {"service_account", "service_account_key", "application_credentials",
                                          "bearer_token"}:  # fmt: skip
        found.setdefault("skip_signature", True)
    return found


def az_options(given: Mapping[str, Any], *, metadata: bool) -> dict[str, Any]:
    """Options of a client for Azure Blob Storage; the account is named by a variable or by the program."""
    found = {**_connection_string(), **_from_environment(_AZURE_VARIABLES), **given}
    if "account_name" not in found:
        raise ConfigError("az:// needs the name of a storage account", hint="set AZURE_STORAGE_ACCOUNT_NAME")
    if not metadata and not set(found) & set(_AZURE_SECRETS):
        found.setdefault("skip_signature", True)
    return found


def hub_token() -> str | None:
    """The token of the Hugging Face Hub: `HF_TOKEN`, or the file that `hf auth login` writes."""
    if token := os.environ.get("HF_TOKEN"):
        return token.strip()
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    try:
        return Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _from_environment(variables: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found = {}
    for option, names in variables.items():
        value = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if value is not None:
            found[option] = value
    return found


def _aws_profile() -> dict[str, Any]:
    """Keys, region and endpoint of the profile in `~/.aws/credentials` and `~/.aws/config`."""
    profile = os.environ.get("AWS_PROFILE") or "default"
    home = Path.home() / ".aws"
    files = (
        (
            os.environ.get("AWS_CONFIG_FILE") or home / "config",
            profile if profile == "default" else f"profile {profile}",
        ),
        (os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials", profile),
    )
    names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key", "region": "region",
             "aws_session_token": "session_token", "endpoint_url": "endpoint"}  # fmt: skip
    found: dict[str, Any] = {}
    needs_cli = False
    for file, section in files:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
        if parser.has_section(section):
            values = {option: parser.get(section, name, fallback="") for name, option in names.items()}
            found |= {option: value for option, value in values.items() if value}
            if parser.has_option(section, KEY_PROGRAM):
                found[KEY_PROGRAM] = shlex.split(parser.get(section, KEY_PROGRAM))
            needs_cli |= any(parser.has_option(section, name) for name in _BY_AWS_CLI)
    if needs_cli:  # keys beside a role are those that ask for it
        found = {option: found[option] for option in ("region", "endpoint") if option in found}
        found[KEY_PROGRAM] = ["aws", "configure", "export-credentials", "--profile", profile, "--format", "process"]
    if os.environ.get("AWS_ACCESS_KEY_ID"):  # the key of one identity with the token of another opens nothing
        found.pop("session_token", None)
    return found


def _connection_string() -> dict[str, str]:
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    parts = dict(piece.partition("=")[::2] for piece in text.split(";"))
    names = {"AccountName": "account_name", "AccountKey": "account_key", "BlobEndpoint": "endpoint",
             "SharedAccessSignature": "sas_key"}  # fmt: skip
    return {option: parts[name] for name, option in names.items() if parts.get(name)}
