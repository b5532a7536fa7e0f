"""The dashboard in a real headless browser: on a phone and a desk, light and dark, by keyboard."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from device_sdk.bundle import Bundle
from tests.live import LiveServer
from tests.server.parties import OPERATOR, Operator, Party

pytestmark = pytest.mark.browser
PAGES = ["", "/rounds", "/models", "/marginals", "/privacy", "/audit"]
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def chromium() -> str | None:
    """A Chromium of this machine: ``IDIOLECT_CHROMIUM``, or one on the path."""
    return os.environ.get("IDIOLECT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def server(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has had rounds and has one open."""
    with LiveServer(tmp_path_factory.mktemp("server"), tiny_bundle.path) as live, httpx.Client(timeout=60) as http:
        operator = Operator(http, live.url)
        parties = [Party(http, live.url).enrol() for _ in range(3)]
        digest = tiny_bundle.words.digest
        for number in range(4):
            opened = operator.open(minimum=1, goal=4)
            for party in parties[: 1 + number % 3]:
                assert party.send_counts(opened, {3: 200, 4: 90}, words_digest=digest).status_code == 200
            if number < 3:
                operator.close(opened)
        yield live.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = chromium()
    if found is None:
        pytest.skip("no Chromium here; install one, or name it in IDIOLECT_CHROMIUM")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=ARGUMENTS)


def signed_in(browser: Any, server: str, **options: Any) -> Any:
    page = browser.new_context(**options).new_page()
    page.goto(f"{server}/")
    page.get_by_label("Operator token").fill(OPERATOR)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_and_nothing_fails(browser: Any, server: str, scheme: str, width: int) -> None:
    page = signed_in(browser, server, color_scheme=scheme, viewport={"width": width, "height": 800})
    troubles: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: troubles.append(request.url))
    for path in PAGES:
        page.goto(f"{server}/dashboard{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.evaluate("getComputedStyle(document.body).fontFamily").startswith("system-ui"), path
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 21, 28)"
        assert dark is (scheme == "dark")
    assert troubles == []
    page.context.close()


def test_by_keyboard_from_the_overview_to_a_round(browser: Any, server: str) -> None:
    page = signed_in(browser, server)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.get_by_role("link", name="Rounds", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Rounds", exact=True).wait_for()
    page.get_by_role("link", name="4", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Round 4").wait_for()
    assert page.get_by_role("progressbar", name="marginals reports of round 4").get_attribute("value") == "1"
    page.context.close()


def test_signing_out_closes_every_page(browser: Any, server: str) -> None:
    page = signed_in(browser, server)
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", name="Sign in").wait_for()
    page.goto(f"{server}/dashboard/privacy")
    assert page.url.endswith("/dashboard/sign-in")
    page.context.close()
