"""The structure of the source in numbers: `python docs/structure.py [SOURCE] [--before OLD_SOURCE]`.

Prints files and lines per package, the largest folders, how many definitions look public, modules with a single
importer, and import cycles. An edge of the import graph is of one of four kinds, the strongest first:

    import   at the top of a module
    lazy     inside a function: it runs when the function does
    typing   under `if TYPE_CHECKING:`: it never runs
    name     the module's name as a string, or under `if TYPE_CHECKING:` of a package's `__init__`, which lists what the
             package offers at first use

A cycle of `import` and `lazy` edges is an error, and the exit code is 1. A cycle that needs a `typing` edge is listed.
Edges by name make no cycle, but who names a module is one of its importers.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KINDS = ("import", "lazy", "typing", "name")
DEFAULT_SOURCE = Path(__file__).resolve().parent.parent / "src" / "penstock"
LARGEST_FOLDERS = 8


@dataclass(frozen=True)
class Edge:
    """One module imports another: how, and in which line."""

    importer: str
    imported: str
    kind: str
    line: int


@dataclass(frozen=True)
class Module:
    """One file: its folder (relative to the package), its lines, and whether it is the `__init__` of a package."""

    name: str
    folder: str
    lines: int
    is_package: bool
    public: int
    """Functions and classes at its top, unless their name or that of a module above begins with an underscore."""


@dataclass(frozen=True)
class Structure:
    """The modules of a package, and the strongest edge between each two of them."""

    modules: Mapping[str, Module]
    edges: Mapping[tuple[str, str], Edge]

    def folders(self) -> dict[str, int]:
        """Folder → its own .py files without `__init__`."""
        found: dict[str, int] = {}
        for module in self.modules.values():
            found[module.folder] = found.get(module.folder, 0) + (not module.is_package)
        return found

    def sizes(self, depth: int) -> dict[str, tuple[int, int]]:
        """Package or sub-package, `depth` folders deep at most → (files, lines), everything below it included."""
        found: dict[str, tuple[int, int]] = {}
        for module in self.modules.values():
            parts = module.folder.split("/")
            for length in range(1, min(depth, len(parts)) + 1):
                name = "/".join(parts[:length])
                files, lines = found.get(name, (0, 0))
                found[name] = (files + 1, lines + module.lines)
        return found

    def single_importers(self) -> dict[str, Edge]:
        """Module → its only importer, of whatever kind; packages and modules that nobody imports are left out."""
        importers: dict[str, list[Edge]] = {}
        for edge in self.edges.values():
            importers.setdefault(edge.imported, []).append(edge)
        return {
            name: edges[0]
            for name, edges in sorted(importers.items())
            if len(edges) == 1 and not self.modules[name].is_package
        }

    def cycles(self, kinds: tuple[str, ...]) -> list[list[Edge]]:
        """The shortest cycle through each edge that lies on one, made of edges of these kinds; each cycle once."""
        onward: dict[str, list[str]] = {}
        for edge in self.edges.values():
            if edge.kind in kinds:
                onward.setdefault(edge.importer, []).append(edge.imported)
        found: dict[frozenset[tuple[str, str]], list[Edge]] = {}
        for importer in sorted(onward):
            for imported in sorted(onward[importer]):
                path = _shortest_path(onward, imported, importer)
                if path is None:
                    continue
                pairs = list(zip([importer, *path], [*path, importer], strict=False))[: len(path)]
                found.setdefault(frozenset(pairs), [self.edges[pair] for pair in pairs])
        return sorted(found.values(), key=lambda cycle: (len(cycle), cycle[0].importer))

    def running_cycles(self) -> list[list[Edge]]:
        """Cycles that Python can meet."""
        return self.cycles(("import", "lazy"))

    def typing_cycles(self) -> list[list[Edge]]:
        """Cycles that only a type checker meets."""
        return [each for each in self.cycles(KINDS[:3]) if any(edge.kind == "typing" for edge in each)]


def _shortest_path(onward: Mapping[str, list[str]], start: str, goal: str) -> list[str] | None:
    """The modules from start to goal, both included; None where there is no way."""
    came_from: dict[str, str | None] = {start: None}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        if here == goal:
            path: list[str] = []
            step: str | None = here
            while step is not None:
                path.append(step)
                step = came_from[step]
            return path[::-1]
        for following in sorted(onward.get(here, ())):
            if following not in came_from:
                came_from[following] = here
                waiting.append(following)
    return None


def read_structure(source: Path) -> Structure:
    """The structure of a package's folder, such as src/penstock (or src, where it holds one package)."""
    source = _package_folder(source)
    modules: dict[str, Module] = {}
    trees: dict[str, ast.Module] = {}
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(source.parent).with_suffix("").parts
        is_package = inside[-1] == "__init__"
        name = ".".join(inside[:-1] if is_package else inside)
        folder = path.parent.relative_to(source).as_posix().removeprefix("_src/")  # as it was before there was one
        tree = trees[name] = ast.parse(text)
        modules[name] = Module(name, folder, len(text.splitlines()), is_package, _public(tree, name))
    edges: dict[tuple[str, str], Edge] = {}
    for name, tree in trees.items():
        for edge in _edges(tree, modules[name], modules):
            pair = (edge.importer, edge.imported)
            known = edges.get(pair)
            if known is None or KINDS.index(edge.kind) < KINDS.index(known.kind):
                edges[pair] = edge
    return Structure(modules, edges)


def _public(tree: ast.Module, name: str) -> int:
    if any(part.startswith("_") for part in name.split(".")):
        return 0
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sum(isinstance(node, definitions) and not node.name.startswith("_") for node in tree.body)


def _package_folder(source: Path) -> Path:
    if (source / "__init__.py").exists():
        return source.resolve()
    packages = sorted(source.glob("*/__init__.py"))
    if len(packages) != 1:
        raise SystemExit(f"{source}: no package with an __init__.py, nor a folder that holds one")
    return packages[0].parent.resolve()


def _edges(tree: ast.Module, module: Module, modules: Mapping[str, Module]) -> Iterator[Edge]:
    for node, kind in _nodes(tree, "import"):
        kind = "name" if isinstance(node, ast.Constant) or (kind == "typing" and module.is_package) else kind
        if isinstance(node, ast.Constant):
            named = node.value.partition(":")[0] if isinstance(node.value, str) else ""
            targets = [named] if named in modules else []
        elif isinstance(node, ast.Import):
            targets = [found for alias in node.names if (found := _module(alias.name, modules))]
        else:
            assert isinstance(node, ast.ImportFrom)
            base = _base(node, module)
            whole = [_module(f"{base}.{alias.name}", modules) for alias in node.names]
            targets = [found for found in whole if found]
        for target in targets:
            if target != module.name:
                yield Edge(module.name, target, kind, node.lineno)


def _base(node: ast.ImportFrom, module: Module) -> str:
    """The absolute name behind `from … import`."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    package = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def _module(name: str, modules: Mapping[str, Module]) -> str:
    """The module that a dotted name means: itself, or the one whose attribute it is; "" where it is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _nodes(node: ast.AST, kind: str) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Constant, str]]:
    """Imports and constants with the kind of edge that their place makes them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Constant):
            yield child, kind
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for each in child.body:
                yield from _nodes(ast.Module([each], []), "typing")
            for each in child.orelse:
                yield from _nodes(ast.Module([each], []), kind)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _nodes(child, "lazy")
        else:
            yield from _nodes(child, kind)


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


# What is printed


def _sizes(trees: list[Structure]) -> Iterator[str]:
    sizes = [tree.sizes(2) for tree in trees]
    names = sorted(set().union(*sizes), key=lambda name: (name == ".", name))
    yield f"{'package':<28}" + "".join(f"{label:>16}" for label in _labels(trees, "files", "lines"))
    for name in names:
        depth = name.count("/")
        label = "  " * depth + ("(top)" if name == "." else f"{name.rpartition('/')[2]}/")
        yield f"{label:<28}" + "".join(f"{each.get(name, (0, 0))[i]:>16,}" for i in (0, 1) for each in sizes)
    total = [(len(tree.modules), sum(module.lines for module in tree.modules.values())) for tree in trees]
    yield f"{'all':<28}" + "".join(f"{each[i]:>16,}" for i in (0, 1) for each in total)


def _labels(trees: list[Structure], *words: str) -> list[str]:
    return [f"{word}{when}" for word in words for when in ((" before", " now") if len(trees) == 2 else ("",))]


def _folders(trees: list[Structure]) -> Iterator[str]:
    folders = [tree.folders() for tree in trees]
    counts = [sorted(each.values(), reverse=True) for each in folders]
    yield "largest folders (.py files directly in them, without __init__)"
    for found, label in zip(folders, _labels(trees, ""), strict=True):
        largest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:LARGEST_FOLDERS]
        yield f"  {label.strip() or 'now'}: " + ", ".join(f"{name} {count}" for name, count in largest)
    yield "  above 15: " + " → ".join(str(sum(count > 15 for count in each)) for each in counts)


def _definitions(trees: list[Structure]) -> Iterator[str]:
    counts = [sum(module.public for module in tree.modules.values()) for tree in trees]
    yield "definitions that look public: " + " → ".join(f"{count:,}" for count in counts)


def _importers(trees: list[Structure]) -> Iterator[str]:
    found = [tree.single_importers() for tree in trees]
    yield "modules with a single importer: " + " → ".join(str(len(each)) for each in found)
    modules = trees[-1].modules
    for name, edge in found[-1].items():
        yield f"  {_short(name):<44} {modules[name].lines:>4} lines   {edge.kind:<6}  by {_short(edge.importer)}"


def _cycles(trees: list[Structure]) -> Iterator[str]:
    for title, select in (
        ("import cycles (also lazy ones)", Structure.running_cycles),
        ("cycles for a type checker alone", Structure.typing_cycles),
    ):
        found = [select(tree) for tree in trees]
        yield f"{title}: " + " → ".join(str(len(each)) for each in found)
        for cycle in found[-1]:
            way = "".join(f" → {_short(edge.imported)} ({edge.kind}, line {edge.line})" for edge in cycle)
            yield f"  {_short(cycle[0].importer)}{way}"


def _short(name: str) -> str:
    """A module's name without that of the package."""
    return name.partition(".")[2] or name


def _files(path: Path) -> set[Path]:
    return set(path.rglob("*.py")) if path.is_dir() else {path}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, default=DEFAULT_SOURCE, help="default: src/penstock")
    parser.add_argument("--before", type=Path, metavar="OLD_SOURCE", help="an older tree, shown beside it")
    parser.add_argument("--without", nargs="+", default=(), metavar="PATH", help="also: the lines of all but these")
    args = parser.parse_args(words)
    trees = [read_structure(path) for path in (args.before, args.source) if path is not None]
    for part in (_sizes, _folders, _definitions, _importers, _cycles):
        print("\n".join(part(trees)), end="\n\n")
    if args.without:
        left_out = {file for each in args.without for file in _files(args.source / each)}
        lines = sum(len(file.read_text().splitlines()) for file in _files(args.source) - left_out)
        print(f"lines without {len(left_out)} files of what was named: {lines:,}")
    return 1 if trees[-1].running_cycles() else 0


if __name__ == "__main__":
    sys.exit(main())
