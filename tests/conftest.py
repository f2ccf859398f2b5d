"""One profile for all property tests: a shared machine's pace is no finding, and the gate repeats itself exactly."""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() not in ("", "0", "false"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("penstock")


@pytest.fixture(autouse=True, scope="session")
def own_cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that tests make goes into the cache of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Tests that run beside these find none of their views.
        patch.setenv("PENSTOCK_RUNTIME", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(autouse=True)
def no_real_time_left_behind() -> Iterator[None]:
    """A peer's AV1 encoder, run by root, makes the test process a real-time one: its children could stop a machine."""
    from penstock._src.media.video.priority import ordinary_priority

    with ordinary_priority():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--optional-only", action="store_true", help="of files that also hold other tests, only those "
                     "tests that skip without torch, lerobot, PIL or scipy")  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--optional-only"):
        return
    others = [each for each in items if not _is_optional(each)]
    config.hook.pytest_deselected(items=others)
    items[:] = [each for each in items if _is_optional(each)]


def _is_optional(item: pytest.Item) -> bool:
    names = _optional_tests(item.path)
    return names is None or getattr(item, "originalname", item.name) in names


@functools.cache
def _optional_tests(path: Path) -> frozenset[str] | None:
    """The tests of a file that call `importorskip` themselves; None where it is called elsewhere, or nowhere."""
    tree = ast.parse(path.read_text())
    calls = sum(isinstance(node, ast.Attribute) and node.attr == "importorskip" for node in ast.walk(tree))
    names: set[str] = set()
    inside = 0
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            n = sum(isinstance(each, ast.Attribute) and each.attr == "importorskip" for each in ast.walk(node))
            inside += n
            names.update([node.name] if n else [])
    return frozenset(names) if inside and inside == calls else None
