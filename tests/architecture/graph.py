"""The graph of imports between the project's files, and what of it points the wrong way."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
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

    def __str__(self) -> str:
        counts = {each.name: len(getattr(self, each.name)) for each in fields(self)}
        return "circles of files {files}, of folders {folders}; upward {upward}, core -> lab {core_to_lab}".format(
            **counts
        )


def wrong(graph: Graph) -> Wrong:
    edges = [(module, other) for module, others in sorted(graph.items()) for other in sorted(others)]
    height = {package: index for index, package in enumerate(PACKAGES)}
    return Wrong(
        files=circles(graph),
        folders=_folder_circles(edges),
        upward=[(a, b) for a, b in edges if height[_top(a)] < height[_top(b)]],
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
    """Strongly connected components of more than one node, sorted (the algorithm of Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            component = stack[stack.index(node) :]
            del stack[-len(component) :]
            if len(component) > 1:
                components.append(sorted(component))

    for node in graph:
        if node not in number:
            visit(node)
    return sorted(components)


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


def _top(module: str) -> str:
    return module.partition(".")[0]


def _in_lab(module: str) -> bool:
    return module == LAB or module.startswith(f"{LAB}.")
