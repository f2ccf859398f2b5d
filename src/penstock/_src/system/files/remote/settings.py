"""How remote bytes are read: requests in flight, time limits, retries, and options that a program gives by itself.

They lie in the environment, so that worker and engine processes have the same ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

from penstock.errors import ConfigError

_VARIABLE = "PENSTOCK_REMOTE"
_METADATA = "PENSTOCK_CLOUD_METADATA"
_IN_FLIGHT = "PENSTOCK_REMOTE_IN_FLIGHT"


@dataclass(frozen=True)
class RemoteSettings:
    """What holds for all remote bytes of a process and of those that it starts."""

    in_flight: int = 64
    """Requests at the same time."""
    timeout_s: float = 60.0
    """Of one request with its body, before it is tried again."""
    connect_timeout_s: float = 10.0
    retries: int = 8
    retry_timeout_s: float = 120.0
    """After so long no further attempt is made."""
    cloud_metadata: bool = False
    """Whether the metadata service of the cloud may be asked for credentials."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By the beginning of a URL (`s3://bucket`): credentials, region, endpoint."""

    def __post_init__(self) -> None:
        for name, least in (("in_flight", 1), ("retries", 0), ("timeout_s", 0.01), ("connect_timeout_s", 0.01)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
                raise ConfigError(f"remote.{name} is {value!r}, at least {least} is needed")

    def beginning_of(self, url: str) -> str | None:
        """The longest beginning of a URL for which options are given."""
        fitting = [each for each in self.options if url == each or url.startswith(each.rstrip("/") + "/")]
        return max(fitting, key=len, default=None)

    def options_of(self, url: str) -> dict[str, Any]:
        """The options given for a URL: those of the longest beginning that fits."""
        found = self.beginning_of(url)
        return {} if found is None else dict(self.options[found])


def settings() -> RemoteSettings:
    """What the environment says now."""
    return _parsed(*(os.environ.get(name, "") for name in (_VARIABLE, _IN_FLIGHT, _METADATA)))


@lru_cache(maxsize=8)  # asked for at every request
def _parsed(text: str, in_flight: str, metadata: str) -> RemoteSettings:
    try:
        given = json.loads(text) if text else {}
        found = RemoteSettings(**given)
        if in_flight:
            found = replace(found, in_flight=int(in_flight))
    except (TypeError, ValueError) as error:
        words = ", ".join(each.name for each in fields(RemoteSettings))
        raise ConfigError(f"{_VARIABLE}, {_IN_FLIGHT}: {error}", hint=f"a JSON object with {words}") from error
    if metadata.lower() in ("1", "true", "yes"):
        found = replace(found, cloud_metadata=True)
    return found


def configure(url: str | None = None, /, **words: Any) -> None:
    """Set how remote bytes are read, for this process and those that it starts.

    Without a URL the words are those of `RemoteSettings`; with one they are credentials and places for what lies below.

    >>> configure(in_flight=192)
    >>> configure("s3://robots", access_key_id="…", secret_access_key="…", endpoint="https://minio:9000")
    """
    now = settings()
    if url is not None:
        now = replace(now, options={**now.options, url.rstrip("/"): words})
    else:
        try:
            now = replace(now, **words)
        except TypeError as error:
            names = ", ".join(each.name for each in fields(RemoteSettings))
            raise ConfigError(f"remote settings: {error}", hint=f"there are {names}") from error
        if "in_flight" in words:
            os.environ.pop(_IN_FLIGHT, None)
    os.environ[_VARIABLE] = json.dumps(asdict(now))
