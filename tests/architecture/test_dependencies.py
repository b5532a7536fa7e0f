"""Dependencies point one way, and each folder keeps to the libraries its install brings."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.graph import Wrong, import_graph, wrong
from tests.architecture.sources import PACKAGES, ROOT, imported_modules, source_files, top_level

BELOW = {package: set(PACKAGES[: position + 1]) for position, package in enumerate(PACKAGES)}

DEVICE_LIBRARIES = {
    *("cryptography", "httpx", "numpy", "onnxruntime", "pydantic", "rich", "safetensors", "sentencepiece"),
    *("soundfile", "soxr", "typer"),
    *("kenlm", "sounddevice", "tuf"),  # extras: imported where they are used, and named when they are missing
}
LIBRARIES = {"rescoring": {"numpy"}, "device_sdk/wire": {"numpy", "pydantic"}, "device_sdk": DEVICE_LIBRARIES}
LISTEN = {"starlette", "uvicorn", "wyoming"}
EXTRAS = {"device_sdk/runtimes/executorch/bindings.py": {"executorch", "torch"}} | {
    str(path.relative_to(ROOT)): LISTEN
    for path in (*(ROOT / "device_sdk" / "listen").glob("*.py"), ROOT / "device_sdk" / "commands" / "listen.py")
}
"""The one module of the device that may import torch, as ExecuTorch's Python bindings do, and only when it is used; and
the server for clients on the user's own machine."""

HEAVY = {"torch", "fastapi", "onnx", "sqlalchemy", "uvicorn", "kenlm", "sounddevice"}
TORCH = (
    *(f"server/lab/benchmarks/{name}" for name in ("bench_peers", "cohort", "rescore", "rnnt_loss", "train")),
    *(f"server/lab/{name}" for name in ("training/", "commands/train", "simulation/engine/")),
    *(f"examples/{name}" for name in ("rao_2023/", "gao_2022/", "cohorts", "pelikan_2023/", "ramesh_2023/")),
    "export/",
)


def test_dependencies_point_one_way() -> None:
    assert wrong(import_graph()) == Wrong([], [], [], [])


PLANTED: dict[str, tuple[dict[str, str], Wrong]] = {
    "a circle of files": (
        {"export/a.py": "from export.b import x", "export/b.py": "def f():\n    import export.a"},
        Wrong([["export.a", "export.b"]], [], [], []),
    ),
    "a circle of folders": (
        {"server/a/one.py": "from server.b import one", "server/b/two.py": "from ..a.two import x"}
        | dict.fromkeys(("server/a/two.py", "server/b/one.py"), ""),
        Wrong([], [["server.a", "server.b"]], [], []),
    ),
    "a circle of folders below": (
        {"server/lab/a/b/one.py": "import server.lab.a.c", "server/lab/a/b/two.py": ""}
        | {"server/lab/a/c.py": "if False:\n    from server.lab.a.b.two import x"},
        Wrong([], [["server.lab.a.b", "server.lab.a.c"]], [], []),
    ),
    "upward": (
        {"rescoring/a.py": "__import__('export.b')", "export/b.py": ""},
        Wrong([], [], [("rescoring.a", "export.b")], []),
    ),
    "core to lab": (
        {"server/app.py": "from server.lab.a import x", "server/lab/a.py": ""},
        Wrong([], [], [], [("server.app", "server.lab.a")]),
    ),
    "nothing": (
        {"server/lab/a.py": "from server.app import x", "server/app.py": "import export.b", "export/b.py": ""},
        Wrong([], [], [], []),
    ),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found(what: str, tmp_path: Path) -> None:
    sources, expected = PLANTED[what]
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, "utf-8")
    assert wrong(import_graph(tmp_path)) == expected


def test_nothing_that_ships_imports_tests() -> None:
    assert not [path for path in source_files(*PACKAGES) if "tests" in top_level(imported_modules(path))]


@pytest.mark.parametrize("folder", LIBRARIES)
def test_a_folder_imports_only_the_libraries_of_its_install(folder: str) -> None:
    allowed = LIBRARIES[folder] | BELOW[folder.partition("/")[0]] | set(sys.stdlib_module_names)
    files = source_files(folder)
    found = {
        name: extra
        for path in files
        if (extra := _third_party(path) - allowed - EXTRAS.get(name := str(path.relative_to(ROOT)), set()))
    }
    assert files and not found, found


def _third_party(path: Path) -> set[str]:
    """Top-level names of what a file imports for certain, and of installed libraries that it might."""
    certain = top_level(imported_modules(path, guess=False))
    return certain | {name for name in top_level(imported_modules(path)) if name in HEAVY}


def test_everything_imported_is_declared() -> None:
    declared: set[str] = {"starlette", "markupsafe"}  # the foundations of fastapi and of jinja2
    declared |= {"piper", "ttspico"}  # of one example, which names them where they are missing
    for file in ("pyproject.toml", "server/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text("utf-8"))["project"]
        wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
        declared |= {re.split(r"[^A-Za-z0-9_-]", name)[0].replace("-", "_") for name in wanted}
    imported = {
        name
        for path in source_files(*PACKAGES)
        if not path.name.endswith("_peers.py")  # which run in an environment of their own
        for name in top_level(imported_modules(path, guess=False))
    }
    assert not imported - declared - set(sys.stdlib_module_names) - set(PACKAGES)


def test_torch_stays_in_its_folders() -> None:
    found = [
        name
        for path in source_files("export", "server", "examples")
        if not (name := str(path.relative_to(ROOT))).startswith(TORCH) and "torch" in top_level(imported_modules(path))
    ]
    assert not found


def test_nothing_unpickles() -> None:
    banned = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
    assert not [path for path in source_files(*PACKAGES) if top_level(imported_modules(path)) & banned]


@pytest.mark.parametrize("file", ["pyproject.toml", "server/pyproject.toml"])
def test_entry_points_name_modules_that_exist(file: str) -> None:
    project = tomllib.loads((ROOT / file).read_text("utf-8"))["project"]
    groups = [*project.get("entry-points", {}).values(), project.get("scripts", {})]
    targets = [target for group in groups for target in group.values()]
    missing = [
        target
        for target in targets
        if not (path := ROOT / f"{target.partition(':')[0].replace('.', '/')}.py").is_file()
        or target.partition(":")[2] not in path.read_text("utf-8")
    ]
    assert targets and not missing


CASES = [
    ("import server.app\n", {"server"}),
    ("def f():\n    from server import app\n", {"server"}),
    ("from ..server import app\n", {"server"}),
    ("from ... import export\n", set()),  # above the root: nothing of ours
    ("import importlib\nimportlib.import_module('export.graphs')\n", {"importlib", "export"}),
    ("from importlib import import_module\nimport_module('..export', __package__)\n", {"importlib", "export"}),
    ("__import__('server')\n", {"server"}),
    ("from importlib import import_module\nNAMES = {'a': 'server.app'}\nimport_module(NAMES['a'])\n", {"a", "server"}),
    ("if False:\n    import torch\n", {"torch"}),
]


@pytest.mark.parametrize(("source", "expected"), CASES)
def test_the_reader_sees_every_way_to_import(source: str, expected: set[str], tmp_path: Path) -> None:
    path = tmp_path / "device_sdk" / "module.py"
    path.parent.mkdir()
    path.write_text(source, "utf-8")
    assert top_level(imported_modules(path, tmp_path)) >= expected
