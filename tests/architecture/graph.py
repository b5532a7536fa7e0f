"""The graph of imports between the project's files, and what of it points the wrong way."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, absolute, modules_of, package_of, source_files

Graph = Mapping[str, frozenset[str]]
"""Module -> modules of the project that it imports, anywhere in it."""

LAB = "server.lab"


@dataclass(frozen=True, slots=True)
class Wrong:
    """Circles of files; circles among what lies in one folder, at least one of it a folder; imports of a package from
    one below it; imports of the lab from the server's core."""

    files: list[list[str]]
    folders: list[list[str]]
    upward: list[tuple[str, str]]
    core_to_lab: list[tuple[str, str]]


def wrong(graph: Graph) -> Wrong:
    edges = [(module, other) for module, others in sorted(graph.items()) for other in sorted(others)]
    height = {package: index for index, package in enumerate(PACKAGES)}
    return Wrong(
        files=circles(graph),
        folders=_folder_circles(edges),
        upward=[(a, b) for a, b in edges if height[a.partition(".")[0]] < height[b.partition(".")[0]]],
        core_to_lab=[(a, b) for a, b in edges if a.startswith("server.") and not _in_lab(a) and _in_lab(b)],
    )


def import_graph(root: Path = ROOT, packages: Sequence[str] = PACKAGES) -> Graph:
    """``from package import module`` counts as an import of the module, of anything else as one of the package."""
    files = {_name(path, root): path for path in source_files(*packages, root=root)}
    graph = {}
    for module, path in files.items():
        tree, package = ast.parse(path.read_text("utf-8"), str(path)), package_of(path, root)
        found = {name for name in modules_of(tree, package, guess=False) if name in files}
        graph[module] = frozenset(found - _only_on_the_way(tree, package, files) - {module})
    return graph


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, sorted."""
    reached: dict[str, set[str]] = {}
    for node in graph:
        found, left = reached.setdefault(node, set()), list(graph[node])
        while left:
            if (other := left.pop()) not in found:
                found.add(other)
                left += graph.get(other, ())
    components = {
        frozenset(other for other in found if node in reached.get(other, ())) for node, found in reached.items()
    }
    return sorted(sorted(component) for component in components if len(component) > 1)


def _folder_circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """At every folder: among the files and folders in it, an import of anything inside one being an import of it."""
    levels: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    folders: set[str] = set()
    for edge in edges:
        importer, imported = (name.split(".") for name in edge)
        depth = next((i for i, pair in enumerate(zip(importer, imported, strict=False)) if pair[0] != pair[1]), 0)
        if depth:
            one, other = (".".join(name[: depth + 1]) for name in (importer, imported))
            levels[".".join(importer[:depth])][one].add(other)
            folders |= {node for node, name in ((one, importer), (other, imported)) if len(name) > depth + 1}
    found = [circle for graph in levels.values() for circle in circles(graph)]
    return sorted(circle for circle in found if folders & set(circle))


def _only_on_the_way(tree: ast.AST, package: tuple[str, ...], files: Mapping[str, Path]) -> set[str]:
    """Packages that are named in imports of their modules only."""
    named: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = absolute(node.module or "", node.level, package)
            whole = all(f"{base}.{alias.name}" in files for alias in node.names)
            named[base] = named.get(base, True) and whole
    return {base for base, whole in named.items() if whole}


def _name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _in_lab(module: str) -> bool:
    return module == LAB or module.startswith(f"{LAB}.")
