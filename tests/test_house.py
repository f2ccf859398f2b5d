"""The house rules: the map is complete, rooms look only upwards, importing is cheap, the command line is documented."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock
from penstock._src.cli import build_parser

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLIC = REPOSITORY / "src" / "penstock"
SOURCE = PUBLIC / "_src"

# A room may import from itself and from rooms above it.
ROOMS = (
    "system",
    "formats",
    "profile",
    "media",
    "recordings",
    "align",
    "lerobot",
    "stores",
    "plan",
    "conversion",
    "demo",
    "load",
    "prepare",
    "cli",
)
# What is public and may be imported below `_src`.
OPEN_TO_ALL = {"penstock.errors", "penstock.__version__"}
# The format knows nothing of where its rows come from, and a timeline nothing of payloads.
STRANGERS = {"lerobot": {"recordings", "align"}, "align": {"media"}}

HEAVY = ("torch", "ray", "lerobot", "cv2", "av", "pyarrow", "h5py", "rosbags", "rich")

MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
PUBLIC_MODULES = sorted(path.stem for path in PUBLIC.glob("*.py") if not path.stem.startswith("__"))


# The map


def _map_text() -> str:
    return (PUBLIC / "README.md").read_text(encoding="utf-8")


def test_the_map_names_every_module() -> None:
    text = _map_text()
    named = set(re.findall(r"[\w/]+\.py", text)) | {f"{name}__init__.py" for name in re.findall(r"`([\w/]+/)`", text)}
    assert [module for module in MODULES if module not in named] == []


def test_the_map_names_nothing_that_is_gone() -> None:
    text = _map_text()
    entries = set(re.findall(r"[\w/]+\.py", text)) | set(re.findall(r"`([\w/]+/)`", text))
    # A line may also speak of a neighbour by its bare name, and of a script outside the package.
    known = set(MODULES) | {module.split("/")[-1] for module in MODULES}
    gone = [name for name in entries if name not in known and not any((at / name).exists() for at in (SOURCE, PUBLIC))]
    assert sorted(name for name in gone if not (REPOSITORY / name).exists()) == []


# The rooms


def _room(module: str) -> str:
    """The room of a module's path: media/image/jpeg.py → media, units.py → system."""
    return module.split("/")[0].removesuffix(".py")


def _imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    """(line, room) of each import of penstock anywhere in the source: in functions and for type checkers too."""
    package = ["penstock", "_src", *module.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{prefix}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[:2] == ["penstock", "_src"] and len(parts) > 2:
                yield node.lineno, parts[2]
            elif parts[0] == "penstock" and len(parts) > 1:
                yield node.lineno, f"penstock.{parts[1]}"


def _breaches(source: str, module: str) -> list[str]:
    room = _room(module)
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - STRANGERS.get(room, set()) | OPEN_TO_ALL
    return [f"{module}:{line} imports {other}" for line, other in _imports(source, module) if other not in allowed]


def test_every_module_lives_in_a_known_room() -> None:
    rooms = {_room(module) for module in MODULES} - {"__init__"}
    assert rooms <= set(ROOMS)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__.py"])
def test_a_room_imports_only_from_rooms_above_it(module: str) -> None:
    assert _breaches((SOURCE / module).read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("source", "module", "count"),
    [
        ("def f():\n    from penstock._src.lerobot.write.writer import X", "align/pairing.py", 1),
        ("from penstock._src import recordings, system", "media/image/jpeg.py", 1),
        ("from ..conversion import job", "lerobot/features.py", 1),
        ("import penstock._src.recordings.fetch", "lerobot/write/writer.py", 1),
        ("from penstock import convert", "plan/memory.py", 1),
        ("from penstock import profile", "load/loader.py", 1),
        ("from . import features\nfrom ..media import mp4\nfrom penstock import __version__", "lerobot/features.py", 0),
        ("import json\nfrom penstock.errors import UsageError", "system/units.py", 0),
    ],
)
def test_a_forbidden_import_would_be_found(source: str, module: str, count: int) -> None:
    assert len(_breaches(source, module)) == count


def test_no_module_is_imported_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    structure = _docs_script("structure", monkeypatch)
    assert structure.read_structure(PUBLIC).running_cycles() == []


# Imports


@pytest.mark.parametrize("statement", ["import penstock", "from penstock._src.cli import build_parser; build_parser()"])
def test_importing_penstock_imports_no_heavy_library(statement: str) -> None:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) & set(HEAVY) == set()


# The public surface


def test_all_is_sorted_and_is_the_public_surface() -> None:
    assert list(penstock.__all__) == sorted(penstock.__all__)
    surface = {"__version__"}
    for node in ast.parse((PUBLIC / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):  # `if TYPE_CHECKING:` lists what is loaded at first use
            imports = [each for each in node.body if isinstance(each, (ast.Import, ast.ImportFrom))]
            surface |= {alias.asname or alias.name for each in imports for alias in each.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            surface.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            surface |= {alias.name for alias in node.names}
    assert surface == set(penstock.__all__)
    assert set(dir(penstock)) >= surface
    assert all(getattr(penstock, name) is not None for name in penstock.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        penstock.nonsense


@pytest.mark.parametrize("module", [module for module in MODULES if module.endswith("/__init__.py")])
def test_a_room_offers_only_what_it_has(module: str) -> None:
    room = importlib.import_module("penstock._src." + module.removesuffix("/__init__.py").replace("/", "."))
    names = getattr(room, "__all__", [])
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(room, name)] == []


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_a_public_module_lists_what_it_offers(name: str) -> None:
    module = importlib.import_module(f"penstock.{name}")
    tree = ast.parse((PUBLIC / f"{name}.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    if name in ("errors", "torch"):  # these hold their code themselves
        return
    imported = [
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(imported) == sorted(module.__all__)


def test_documentation_and_examples_import_public_names_only() -> None:
    pages = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "examples").rglob("*.py")]
    about_the_inside = {"how-it-works", "contributing"}
    private, modules = [], set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        modules |= set(re.findall(r"(?:from|import) penstock\.(\w+)", text)) - {"_src"}
        if not about_the_inside & set(page.parts):
            private += [f"{page.name}: {line}" for line in text.splitlines() if " penstock._src." in line]
    assert private == []
    assert modules <= set(PUBLIC_MODULES)


def test_every_public_name_is_documented() -> None:
    pages = (REPOSITORY / "docs" / "reference").glob("*.md"), (REPOSITORY / "docs" / "contributing").glob("*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for group in pages for page in group)
    modules = [penstock, *(importlib.import_module(f"penstock.{name}") for name in PUBLIC_MODULES if name != "errors")]
    names = {name for module in modules for name in module.__all__ if not name.startswith("__")}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", text)) == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [m for m in MODULES if not ast.get_docstring(ast.parse((SOURCE / m).read_text(encoding="utf-8")))]
    assert silent == []


def test_no_two_classes_have_the_same_name() -> None:
    modules: dict[str, list[str]] = {}
    for path in sorted(PUBLIC.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, []).append(path.relative_to(PUBLIC).as_posix())
    assert {name: where for name, where in modules.items() if len(where) > 1} == {}


def test_files_fit_in_a_head() -> None:
    lengths = {module: len((SOURCE / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: length for module, length in lengths.items() if length > 500} == {}


# The command line


def _docs_script(name: str, monkeypatch: pytest.MonkeyPatch | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if monkeypatch is not None:
        monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return _docs_script("make_cli_reference")


def test_the_map_says_what_the_modules_say_of_themselves() -> None:
    assert _map_text() == _docs_script("make_house_map").render(), "run: python docs/make_house_map.py"


def test_every_verb_and_every_argument_has_help(reference: ModuleType) -> None:
    parser = build_parser()
    assert all(reference.verb_summaries(parser).values())
    for verb, verb_parser in reference.verb_parsers(parser).items():
        assert verb_parser.description, verb
        bare = [action.dest for action in verb_parser._actions if not action.help and action.help != argparse.SUPPRESS]
        assert bare == [], verb


def test_every_verb_has_a_section_in_the_reference(reference: ModuleType) -> None:
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    verbs = reference.verb_parsers(build_parser())
    assert verbs
    assert [verb for verb in verbs if f"\n## penstock {verb}\n" not in page] == []


def test_the_reference_is_what_the_parser_says_now(reference: ModuleType) -> None:
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == reference.render(), "run: python docs/make_cli_reference.py"


# The package


def _project() -> str:
    return (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_the_package_and_the_project_file_agree_on_the_version() -> None:
    assert f'\nversion = "{penstock.__version__}"\n' in _project()


def test_env_shows_every_dependency() -> None:
    from penstock._src.cli.env import LIBRARIES

    block = re.search(r"^dependencies = \[\n(.*?)^\]", _project(), re.MULTILINE | re.DOTALL)
    assert block is not None
    assert sorted(re.findall(r'"([\w-]+)', block[1])) == sorted(LIBRARIES)
