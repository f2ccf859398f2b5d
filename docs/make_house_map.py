"""Writes the map in src/penstock/README.md from the first line of every module: `python docs/make_house_map.py`."""

from __future__ import annotations

import ast
from pathlib import Path

PUBLIC = Path(__file__).resolve().parent.parent / "src" / "penstock"
SOURCE = PUBLIC / "_src"
TARGET = PUBLIC / "README.md"
BEGIN, END = "<!-- map -->", "<!-- end of map -->"

# In the order in which a room may look: only to rooms above it.
ROOMS = (
    "system", "formats", "profile", "media", "recordings", "align", "lerobot", "stores", "plan",
    "conversion", "demo", "load", "prepare", "cli",
)  # fmt: skip


def render() -> str:
    """The whole page: what stands around the map is kept."""
    text = TARGET.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + "\n".join(_lines()) + "\n" + END + rest.split(END)[1]


def _lines() -> list[str]:
    lines = ["| file | what lives there |", "|---|---|"]
    for path in sorted(PUBLIC.glob("*.py")):
        lines.append(f"| `{path.name}` | {_first_line(path)} |")
    lines.append(f"| **`_src/`** | **{_first_line(SOURCE / '__init__.py')}** |")
    for room in ROOMS:
        lines += _package(SOURCE / room)
    return lines


def _package(path: Path) -> list[str]:
    """A package, its modules, then its sub-packages."""
    name = path.relative_to(SOURCE).as_posix()
    lines = [f"| **`{name}/`** | **{_first_line(path / '__init__.py')}** |"]
    modules = sorted(each for each in path.glob("*.py") if each.name != "__init__.py")
    lines += [f"| `{name}/{each.name}` | {_first_line(each)} |" for each in modules]
    for below in sorted(each.parent for each in path.glob("*/__init__.py")):
        lines += _package(below)
    return lines


def _first_line(path: Path) -> str:
    told = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return told.splitlines()[0].replace("|", "\\|") if told else ""


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
