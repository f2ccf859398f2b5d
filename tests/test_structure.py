"""docs/structure.py finds sizes, single importers and cycles of every kind in a made package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "structure.py"


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["structure"] = module  # dataclasses looks there
    spec.loader.exec_module(module)
    return module


def _package(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder / "made"


def _ways(cycles: list[list]) -> list[list[tuple[str, str, str]]]:
    return [[(edge.importer, edge.imported, edge.kind) for edge in cycle] for cycle in cycles]


def test_a_cycle_of_imports_is_found_once_and_is_an_error(structure: ModuleType, tmp_path: Path) -> None:
    made = _package(tmp_path, {"__init__.py": "", "a.py": "import made.b\n", "b.py": "from . import a\n"})
    found = structure.read_structure(made)
    assert _ways(found.running_cycles()) == [[("made.a", "made.b", "import"), ("made.b", "made.a", "import")]]
    assert structure.main([str(made)]) == 1


def test_an_import_inside_a_function_closes_a_cycle(structure: ModuleType, tmp_path: Path) -> None:
    late = "class C:\n    def f(self):\n        from made.sub.b import g\n        return g\n"
    made = _package(
        tmp_path, {"__init__.py": "", "a.py": late, "sub/__init__.py": "", "sub/b.py": "from ..a import C\n"}
    )
    found = structure.read_structure(made)
    assert _ways(found.running_cycles()) == [[("made.a", "made.sub.b", "lazy"), ("made.sub.b", "made.a", "import")]]


def test_a_cycle_for_type_checkers_is_listed_and_no_error(
    structure: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.b import B\n"
    made = _package(tmp_path, {"__init__.py": "", "a.py": hint, "b.py": "from made.a import A\n"})
    found = structure.read_structure(made)
    assert found.running_cycles() == []
    assert _ways(found.typing_cycles()) == [[("made.a", "made.b", "typing"), ("made.b", "made.a", "import")]]
    assert structure.main([str(made)]) == 0
    assert "a → b (typing, line 3) → a (import, line 1)" in capsys.readouterr().out


def test_what_a_package_offers_at_first_use_is_no_cycle(structure: ModuleType, tmp_path: Path) -> None:
    offer = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.a import A\nHOMES = {'A': 'made.a:A'}\n"
    made = _package(tmp_path, {"__init__.py": offer, "a.py": "from made import __version__\n"})
    found = structure.read_structure(made)
    assert found.running_cycles() == found.typing_cycles() == []
    assert found.edges["made", "made.a"].kind == "name"


def test_single_importers_name_who_and_how(structure: ModuleType, tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "once.py": "",
        "twice.py": "",
        "child.py": "import made.twice\n",
        "user.py": "import made.twice\nMODULE = 'made.child'\ndef f():\n    from made import once\n",
    }
    found = structure.read_structure(_package(tmp_path, files)).single_importers()
    assert {name: (edge.importer, edge.kind) for name, edge in found.items()} == {
        "made.child": ("made.user", "name"),
        "made.once": ("made.user", "lazy"),
    }


def test_two_trees_stand_side_by_side(
    structure: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _package(tmp_path / "old", {"__init__.py": "", "p/__init__.py": "", "p/a.py": "1\n2\n", "p/b.py": "3\n"})
    now = _package(tmp_path / "new", {"__init__.py": "", "p/__init__.py": "", "p/a.py": "1\n"})
    assert structure.main([str(now), "--before", str(before.parent)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["p/", "3", "2", "3", "1"] in rows
    assert ["all", "4", "3", "3", "1"] in rows


def test_definitions_look_public_unless_they_or_a_module_above_say_otherwise(
    structure: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "def a(): ...\nclass B:\n    def method(self): ...\ndef _c(): ...\n"
    made = _package(tmp_path, {"__init__.py": "", "open.py": lines, "_src/__init__.py": "", "_src/hidden.py": lines})
    structure.main([str(made)])
    assert "definitions that look public: 2\n" in capsys.readouterr().out
