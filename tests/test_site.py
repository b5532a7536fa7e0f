"""The site: what its reference shows, that names in docstrings exist, and that it builds without a warning."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType

import griffe
import pytest

import device_sdk
from tests.architecture.sources import ROOT
from tests.pages import PAGES, text_of

PACKAGES = ("rescoring", "device_sdk", "export", "server")
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def extension() -> ModuleType:
    """How the site reads docstrings, which is no part of any package."""
    specification = spec_from_file_location("docstrings", ROOT / "docs" / "extensions" / "docstrings.py")
    assert specification is not None and specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loader() -> griffe.GriffeLoader:
    found = griffe.GriffeLoader(search_paths=[ROOT])
    for package in PACKAGES:
        found.load(package)
    found.resolve_aliases(implicit=True)
    return found


def test_the_reference_shows_every_public_name_once() -> None:
    shown = [name for page in PAGES for name in SHOWN.findall(text_of(page))]
    assert len(shown) == len(set(shown))
    assert {f"device_sdk.{name}" for name in device_sdk.__all__} <= set(shown)
    assert {f"rescoring.{path.stem}" for path in (ROOT / "rescoring").glob("[a-z]*.py")} <= set(shown)


def test_what_the_reference_shows_exists_and_is_described(loader: griffe.GriffeLoader) -> None:
    """Without a docstring a member would be left out. Fields stand in the signature of their class."""
    for page in PAGES:
        for name in SHOWN.findall(text_of(page)):
            found = loader.modules_collection[name]
            silent = [each.path for each in described(found) if each.docstring is None]
            assert found.docstring is not None and not silent, f"{page}: {silent or name}"


def test_every_public_method_of_a_device_is_on_its_page(loader: griffe.GriffeLoader) -> None:
    assert "device_sdk.Device" in SHOWN.findall(text_of("docs/reference/device.md"))
    shown = {each.name for each in described(loader.modules_collection["device_sdk.Device"])}
    assert set(public(device_sdk.Device)) <= shown


def test_every_role_in_a_docstring_names_something(loader: griffe.GriffeLoader, extension: ModuleType) -> None:
    unknown = list(dead_roles(loader, extension))
    assert not unknown, "\n".join(unknown)


def test_a_role_that_names_nothing_is_seen(tmp_path: Path, extension: ModuleType) -> None:
    (tmp_path / "made.py").write_text(
        '"""See :func:`there` and :func:`gone` and :class:`made.Gone`."""\n\ndef there(): ...\n'
    )
    found = griffe.GriffeLoader(search_paths=[tmp_path])
    found.load("made")
    extension.PACKAGES = (*extension.PACKAGES, "made")
    assert list(dead_roles(found, extension, "made")) == ["made: :func:`gone`", "made: :class:`made.Gone`"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Steps. rate: Hz; size, most: of it. Else.", "Steps.\n\n- **rate**: Hz.\n- **size, most**: of it. Else."),
        ("Raises nothing. other: stays.", "Raises nothing. other: stays."),
        ("rate > 0: Hz. StateError: it is closed.", "- **rate** > 0: Hz.\n- **StateError**: it is closed."),
        ("rate: Hz. Raises StateError (it is closed).", "- **rate**: Hz.\n- **Raises** StateError (it is closed)."),
        ("log p(words </s>), ``a < b``. rate: x.", "log p(words &lt;/s>), ``a < b``.\n\n- **rate**: x."),
        ("As of rate.\n\n    rate: code", "As of rate.\n\n    rate: code"),
        ("See :class:`~device_sdk.device.Device`.", 'See <autoref identifier="device_sdk.device.Device" optional>'
         "<code>Device</code></autoref>."),
    ],
)  # fmt: skip
def test_a_docstring_is_shown_as_lists_and_links(text: str, shown: str, extension: ModuleType) -> None:
    parameters = griffe.Parameters(*(griffe.Parameter(name) for name in ("rate", "size", "most")))
    function = griffe.Function("of", parameters=parameters, parent=griffe.Module("device_sdk"))
    assert extension.shown(function, text) == shown


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_shows_every_public_method(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")]
    own = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    pages = {path.parent.name: path.read_text("utf-8") for path in (tmp_path / "site" / "reference").glob("*/*.html")}
    assert all(f'id="device_sdk.Device.{name}"' in pages["device"] for name in public(device_sdk.Device))
    ids = set(re.findall(r'id="device_sdk\.(\w+\.\w+)"', "".join(pages.values())))
    for kind in (getattr(device_sdk, name) for name in device_sdk.__all__):
        missing = {f"{kind.__name__}.{name}" for name in public(kind)} - ids if isinstance(kind, type) else None
        assert not missing, missing
    for path in (tmp_path / "site").rglob("*.html"):
        text = unescape(re.sub(r"<pre.*?</pre>|<code.*?</code>", "", path.read_text("utf-8"), flags=re.DOTALL))
        assert not re.search(r":(class|func|meth|mod|data|attr|exc):`|unrun=|^::: ", text, re.MULTILINE), path


def public(of: type) -> list[str]:
    """Its methods and properties, inherited ones too."""
    kinds = (FunctionType, classmethod, staticmethod, property)
    own = [each for each in of.__mro__ if each.__module__.startswith("device_sdk")]
    return [name for each in own for name, value in vars(each).items() if name[0] != "_" and isinstance(value, kinds)]


def described(of: griffe.Object | griffe.Alias) -> Iterator[griffe.Object | griffe.Alias]:
    """Public functions, classes and properties in it."""
    of = of.final_target if isinstance(of, griffe.Alias) else of
    if of.is_module or of.is_class:
        for name, each in of.members.items():
            if name.startswith("_") or each.is_alias:
                continue
            if not each.is_attribute or "property" in each.labels:
                yield each
                yield from described(each)


def dead_roles(loader: griffe.GriffeLoader, extension: ModuleType, *packages: str) -> Iterator[str]:
    """Roles that resolve to nothing, with the object whose docstring has them."""
    for package in packages or PACKAGES:
        for each in extension.members(loader.modules_collection[package]):
            for role in extension.ROLE.finditer(each.docstring.value if each.docstring else ""):
                try:
                    loader.modules_collection[extension.role_target(each, role)]
                except (KeyError, griffe.GriffeError):
                    yield f"{each.path}: {role[0]}"
