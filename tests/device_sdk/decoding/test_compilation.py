"""The search as native modules and as the Python they were made of."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from device_sdk.compilation import FOLDER, KERNELS, SEARCH, STAMP, SWITCH, compiled_folder, digest
from device_sdk.runtimes import native_kernels
from tests.architecture.sources import ROOT, imported_modules, top_level

PACKAGE = ROOT / "device_sdk" / "decoding"

DRIVER = """
import random, sys
from device_sdk.decoding import DecodingSettings, Hotword, Hotwords, Recognizer, block
from device_sdk.decoding.beam import advance, greedy, paths, start
from device_sdk.runtimes import native_kernels
from tests.device_sdk.decoding.lattices import RandomLattice, frames
from tests.speech import clips, packaged

print("native" if not block.__file__.endswith(".py") else "source", file=sys.stderr)
draw = random.Random(1)
for seed in range(60):
    lattice = RandomLattice(seed, draw.randint(2, 9), draw.uniform(0.5, 4.0), draw.uniform(0.0, 7.0))
    width = draw.randint(2, 9)
    way = draw.choice(["sum", "modified"])
    settings = DecodingSettings(width, 1, draw.randint(0, 3), draw.choice([0.5, 2.0, 4, 60.0]), search=way)
    for search in (advance, greedy):
        beam = start(lattice)
        for part in (frames(40)[:13], frames(40)[13:14], frames(40)[14:]):
            beam = search(beam, part, lattice, settings)
        print(paths(beam), len(beam.aside), lattice.calls)
native_kernels.native_module = lambda: None  # which round otherwise than graphs do
bundle = packaged()
hotwords = Hotwords.build(["volume", Hotword("madrid", 3.0, ("mad rid",)), "laundry detergent"])
for settings in (DecodingSettings(), DecodingSettings(beam=1, nbest=1), DecodingSettings(beam=24, nbest=8)):
    for named in (None, hotwords):
        session = Recognizer(bundle, settings).session(16_000, hotwords=named)
        for clip in clips()[:3]:
            session.feed(clip)
            result = session.finish()
            print(result.nbest)
            session.reset()"""


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run there, with what lies there first on the path; the switch is as ``environment`` says or not set."""
    inherited = {name: value for name, value in os.environ.items() if name != SWITCH}
    chosen = {**inherited, "PYTHONPATH": str(folder), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=chosen, capture_output=True, text=True, timeout=600, check=False)


def said(folder: Path, compiled: bool) -> tuple[str, str]:
    """(what the driver prints, which of the two ran)"""
    done = python(folder, "-c", DRIVER, **{SWITCH: str(int(compiled))})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.split()[-1]


def compare(folder: Path) -> None:
    native, source = said(folder, True), said(folder, False)
    assert (native[1], source[1]) == ("native", "source") and native[0] == source[0] and len(native[0]) > 10_000


@pytest.mark.skipif(os.environ.get(SWITCH) == "0", reason=f"{SWITCH}=0: these tests run as Python")
def test_the_tests_run_what_users_run() -> None:
    modules = [import_module(f"{SEARCH.package}.{Path(source).stem}") for source in SEARCH.sources]
    stale = [str(module.__file__) for module in modules if str(module.__file__).endswith(".py")]
    assert not stale and native_kernels.native_module() is not None, "`make native` compiles these sources"


def test_native_modules_give_what_their_source_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if compiled_folder(PACKAGE, SEARCH) is None:
        pytest.skip("this tree holds no native modules of these sources; `make native` compiles them")
    compare(ROOT)


def small_tree(root: Path, mypycify: str) -> Path:
    """What a build compiles, with another mypyc in place of the true one, and what earlier builds may have left."""
    kernels = (f"device_sdk/runtimes/native_kernels/{name}" for name in KERNELS.sources)
    for name in ("device_sdk/compilation.py", "setup.py", *kernels):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    for what in (SEARCH, KERNELS):
        folder = root.joinpath(*what.package.split("."), FOLDER)
        folder.mkdir(parents=True)
        (folder / "earlier.so").write_bytes(b"of other sources")
    for name in ("device_sdk", "device_sdk/decoding", "device_sdk/runtimes", "device_sdk/runtimes/native_kernels"):
        (root / name / "__init__.py").write_text("", "utf-8")
    (root / "mypyc").mkdir()
    (root / "mypyc" / "__init__.py").write_text("", "utf-8")
    (root / "mypyc" / "build.py").write_text(f"def mypycify(*_, **__):\n    {mypycify}\n", "utf-8")
    return root


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("mypycify", "native", "environment", "why"),
    [
        ("raise SystemExit('this mypyc compiles nothing')", None, {}, "this mypyc compiles nothing"),
        ("import nothing_of_that_name", None, {}, "No module named 'nothing_of_that_name'"),
        ("return []", "#error of no use\n", {}, "of no use"),
        ("return []", None, {"CC": "no-such-compiler -O2"}, "no C compiler: no-such-compiler"),
    ],
    ids=["mypyc", "mypyc's own imports", "kernels", "compiler"],
)
def test_a_build_that_compiles_nothing_fails_and_says_how_to_go_on(tmp_path, mypycify, native, environment, why):
    """And leaves nothing that half works."""
    root = small_tree(tmp_path, mypycify)
    if native is not None:
        (root / "device_sdk" / "runtimes" / "native_kernels" / "native.c").write_text(native, "utf-8")
    built = python(root, "setup.py", "build_ext", "--inplace", **environment)
    assert built.returncode != 0 and why in built.stdout + built.stderr
    assert f"{SWITCH}=0" in built.stderr.splitlines()[-1] and not list(root.glob(f"device_sdk/**/{FOLDER}"))


def test_a_build_that_is_told_not_to_compile_does_not(tmp_path: Path) -> None:
    root = small_tree(tmp_path, "raise SystemExit('nobody asked')")
    built = python(root, "setup.py", "build_ext", **{SWITCH: "0"})
    assert built.returncode == 0, built.stderr
    assert not list(root.glob("build/**/*.so"))


def test_a_build_brings_what_types_the_search() -> None:
    """mypyc reads the types of what the search imports: a build without these compiles nothing."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    brought = {re.split(r"[^\w-]", requirement)[0] for requirement in settings}
    imported = {name for source in SEARCH.sources for name in top_level(imported_modules(PACKAGE / source))}
    assert imported - sys.stdlib_module_names - {"device_sdk", "rescoring"} <= brought


@pytest.mark.parametrize("what", [SEARCH, KERNELS], ids=lambda what: str(what.package))
def test_native_modules_are_those_of_exactly_these_sources(tmp_path, monkeypatch, what):
    monkeypatch.setenv(SWITCH, "1")
    for name in what.sources:
        shutil.copy2(ROOT.joinpath(*what.package.split(".")) / name, tmp_path)
    assert compiled_folder(tmp_path, what) is None
    folder = tmp_path / FOLDER
    folder.mkdir()
    assert compiled_folder(tmp_path, what) is None
    (folder / STAMP).write_text(digest(tmp_path, what), "ascii")
    assert compiled_folder(tmp_path, what) == folder
    monkeypatch.setenv(SWITCH, "0")
    assert compiled_folder(tmp_path, what) is None
    monkeypatch.delenv(SWITCH)
    with (tmp_path / what.sources[-1]).open("a", encoding="utf-8") as source:
        source.write("\n")
    assert compiled_folder(tmp_path, what) is None
    (folder / STAMP).write_bytes(b"\xff")
    assert compiled_folder(tmp_path, what) is None
