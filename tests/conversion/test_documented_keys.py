"""Every key of a configuration is in the documentation, and every documented key can be written."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest

from penstock._src.conversion.kuavo import KuavoDataset, Rosbag
from penstock._src.conversion.settings import EpisodeSettings, FeatureSettings, Settings, TopicSource

DOCS = Path(__file__).resolve().parents[2] / "docs"
_KEY = re.compile(r"`([a-z0-9_.]+|\.[a-z]+)`")


def documented(page: str, head: str) -> list[str]:
    """The keys in the first column of all tables headed `head`; `.gop` behind `encoding.crf` is `encoding.gop`."""
    found: list[str] = []
    inside = False
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith(f"| {head} |"):
            inside = True
        elif inside and not line.startswith("|--"):
            for key in _KEY.findall(line.split("|")[1]):
                group = found[-1].rpartition(".")[0] if key.startswith(".") else ""
                found.append(group + key)
    return found


def keys_of(cls: type, prefix: str = "") -> list[str]:
    hints = typing.get_type_hints(cls)
    found: list[str] = []
    for field in dataclasses.fields(cls):
        if field.name in ("features", "episodes"):  # tables of their own
            continue
        inner = hints[field.name]
        found += keys_of(inner, f"{field.name}.") if dataclasses.is_dataclass(inner) else [prefix + field.name]
    return found


@pytest.mark.parametrize(
    ("page", "head", "keys"),
    [
        ("reference/configuration.md", "key", keys_of(Settings)),
        ("reference/configuration.md", "key of a source", keys_of(TopicSource)),
        ("reference/configuration.md", "key of a feature", keys_of(FeatureSettings)),
        ("reference/configuration.md", "key of `episodes:`", keys_of(EpisodeSettings)),
    ],
)
def test_the_tables_have_the_keys_that_there_are(page: str, head: str, keys: list[str]) -> None:
    written = documented(page, head)
    assert len(written) == len(set(written))
    assert set(written) == set(keys)


def test_the_shipped_configuration_shows_every_key_of_kuavos() -> None:
    shipped = (DOCS.parent / "compat" / "configs" / "data" / "KuavoRosbag2Lerobot.yaml").read_text(encoding="utf-8")
    keys = [field.name for cls in (Rosbag, KuavoDataset) for field in dataclasses.fields(cls)]
    assert [key for key in keys if not re.search(rf"^  {key}:", shipped, re.MULTILINE)] == []
