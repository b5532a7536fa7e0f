"""The checkout's source files: which modules each imports, read from its syntax tree, and a copy of all."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rescoring", "device_sdk", "export", "server", "examples")
DOTTED = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
IMPORTERS = {"import_module", "__import__", "run_module"}


def source_files(*packages: str, root: Path = ROOT) -> list[Path]:
    return sorted(
        path
        for package in packages
        for path in (root / package).rglob("*.py")
        if not {"build", "dist", "_build", "__pycache__"} & set(path.relative_to(root).parts)
    )


def imported_modules(path: Path, root: Path = ROOT, *, guess: bool = True) -> set[str]:
    """Absolute dotted names of everything a file imports, anywhere in it. Relative imports are resolved. A dynamic
    import with a literal counts as that module; one whose argument is computed counts, where ``guess`` allows it, as
    every string in the file that looks like a module: it might be any."""
    return set(modules_of(ast.parse(path.read_text("utf-8"), str(path)), package_of(path, root), guess))


def package_of(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).with_suffix("").parts[:-1]


def modules_of(tree: ast.AST, package: tuple[str, ...], guess: bool) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, level=level, names=names):
                base = absolute(module or "", level, package)
                yield from (f"{base}.{alias.name}" if base else alias.name for alias in names)
                if base:
                    yield base
            case ast.Call(func=function, args=arguments) if _name(function) in IMPORTERS:
                yield from _dynamic(tree, arguments[0] if arguments else None, package, guess)


def _dynamic(tree: ast.AST, argument: ast.expr | None, package: tuple[str, ...], guess: bool) -> Iterator[str]:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        name = argument.value.lstrip(".")
        yield absolute(name, len(argument.value) - len(name), package)
        return
    for node in ast.walk(tree) if guess else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.match(node.value):
            yield node.value


def absolute(module: str, level: int, package: tuple[str, ...]) -> str:
    if level == 0:
        return module
    anchor = package[: len(package) - (level - 1)]
    return ".".join([*anchor, module] if module else anchor)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case _:
            return ""


def top_level(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def copy_checkout(folder: Path) -> Path:
    """Copies what git tracks, and nothing that an earlier build left. Returns ``folder``."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for path in filter(Path.is_file, map(ROOT.joinpath, listed.split("\0"))):
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    return folder
