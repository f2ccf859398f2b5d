"""Conversions into a bucket for the tests: small jobs, and what lies in the bucket afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from penstock._src.system.files.remote import client_of
from tests.faults.jobs import call_of_many

T = TypeVar("T")
URL = "s3://b/sets/one"


def call(sources: list[Path], out: str = URL, **more: Any) -> dict[str, Any]:
    """Arguments of `penstock.convert`."""
    return {**call_of_many(sources, Path("x"), **more), "out": out}


def objects(url: str = URL) -> dict[str, bytes]:
    """Every object of a data set, by its name."""
    client, prefix = client_of(url)
    infos = client.list_objects(prefix)
    return {each.key.removeprefix(f"{prefix}/"): bytes(client.read_all(each.key)[0]) for each in infos}


def etags(url: str) -> dict[str, str | None]:
    """The ETags of all objects, by one request: small objects have that of their bytes."""
    client, prefix = client_of(url)
    return {each.key.removeprefix(f"{prefix}/"): each.etag for each in client.list_objects(prefix)}


def same_in_every_run(found: dict[str, T]) -> dict[str, T]:
    """Without what tells of a single run: reports, who took which chunk, and commits that time divided into groups."""
    own = ("penstock/report.json", "penstock/journal.jsonl")
    return {name: data for name, data in found.items() if "/runs/" not in name and not name.endswith(own)}


def local_names(found: dict[str, bytes]) -> dict[str, bytes]:
    """The files that a local data set has, too, penstock's own left out; info.json as that one writes it."""
    plain = {name: data for name, data in found.items() if not name.startswith("penstock/")}
    info = json.loads(plain["meta/info.json"])
    del info["penstock_metadata"]
    plain["meta/info.json"] = json.dumps(info, indent=4, ensure_ascii=False).encode()
    return plain


def download(url: str, target: Path) -> Path:
    """As `aws s3 sync` does."""
    for name, data in objects(url).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return target


def staged() -> list[str]:
    """What conversions left in the cache directory."""
    outputs = Path(os.environ["PENSTOCK_CACHE"]) / "outputs"
    return sorted(path.name for path in outputs.iterdir()) if outputs.is_dir() else []
