"""The page in a headless Chromium whose microphone is a recording: heard, corrected, learned, agreed to, forgotten."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.device_sdk.listen.servers import Server, listening
from tests.device_sdk.listen.voices import spoken
from tests.server.web.dashboard.test_browser import ARGUMENTS, chromium
from tests.speech import packaged

pytestmark = pytest.mark.browser
RATE = 48_000  # of the browser's microphone
SAID = "sorry change it to the food is here"
MEANT = "kheer"
"""The last word that the user meant: no model knows it, whatever else it hears, and on whichever processor."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    packaged()
    with listening(tmp_path_factory.mktemp("page") / "state") as found:
        yield found


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A command and the silence after it, over and over."""
    import soxr

    waveform = next(one for said in spoken() for one in said if one.text == SAID).load()
    path = tmp_path_factory.mktemp("microphone") / "said.wav"
    samples = soxr.resample(np.concatenate([np.zeros(8_000), waveform, np.zeros(40_000)]), 16_000, RATE)
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    return path


@pytest.fixture(scope="module")
def browser(recording: Path) -> Iterator[Any]:
    found = chromium()
    if found is None:
        pytest.skip("no Chromium here; install one, or name it in IDIOLECT_CHROMIUM")
    microphone = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    microphone.append(f"--use-file-for-fake-audio-capture={recording}")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=found, args=[*ARGUMENTS, *microphone])


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """As somebody new; whatever goes wrong in it fails the test."""
    context = browser.new_context(permissions=["microphone"])
    page, troubles = context.new_page(), list[str]()
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: _inside(request.url, server, troubles))
    page.goto(server.http)
    yield page
    assert troubles == []
    context.close()


def _inside(url: str, server: Server, troubles: list[str]) -> None:
    if not url.startswith((server.http, server.http.replace("http", "ws", 1))):
        troubles.append(f"asked for {url}")


def _as(page: Any, name: str) -> None:
    page.get_by_label("Who speaks").fill(name)
    page.get_by_role("button", name="Use").click()


def _heard(page: Any) -> Any:
    """The first result of what is said into the microphone."""
    page.get_by_role("button", name="Listen").click()
    page.locator("#partial:not(:empty)").wait_for(timeout=30_000)
    result = page.locator("#results > li").last
    result.locator(".words button").first.wait_for(timeout=30_000)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Listen").wait_for(timeout=10_000)
    return result


def _learned(server: Server, person: str, before: int = 0) -> int:
    """How many steps there are, as soon as there are more than before."""
    for _ in range(300):
        me = httpx.get(f"{server.http}/v1/me", headers={"X-Idiolect-Person": person}, timeout=60).json()
        if me["steps"] > before:
            return int(me["steps"])
        time.sleep(0.1)
    raise AssertionError("nothing was learned")


def _words(result: Any) -> str:
    return " ".join(result.locator(".words button").all_inner_texts())


def test_speak_correct_say_it_again_and_it_is_right(page: Any, server: Server) -> None:
    _as(page, "carla")
    result = _heard(page)
    *before, last = _words(result).split()
    assert before and last != MEANT
    again, steps = result, 0
    for _ in range(2):  # what masks hide is drawn at random: one correction is seldom too few
        again.locator(".words button").last.click()
        page.keyboard.type(MEANT)
        page.keyboard.press("Enter")
        again.get_by_text("corrected").wait_for()
        steps = _learned(server, "carla", steps)
        page.reload()
        again = _heard(page)
        if _words(again).endswith(MEANT):
            break
    assert _words(again) == " ".join([*before, MEANT])
    again.get_by_text("What else it could have been").click()
    parts = again.locator("th").all_inner_texts()
    assert {"Heard", "score", "acoustic", "neural", "personal", "hotword"} <= {*parts}
    again.get_by_role("button", name="Accept").click()
    again.get_by_text("accepted").wait_for()


def test_vocabulary_consent_next_report_and_forget(page: Any, server: Server) -> None:
    _as(page, "dora")
    page.get_by_label("Name or word").fill("xiomara")
    page.get_by_label("Heard as").fill("see omara")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("xiomara (heard as see omara), from app").wait_for()
    _heard(page)
    page.get_by_text("The next report").click()
    page.get_by_text("You have not agreed to send word counts").wait_for()
    page.get_by_label("sending bounded, noised word counts").check()
    page.get_by_text("would draw on these counts").wait_for()
    page.get_by_label("sending bounded, noised word counts").uncheck()
    page.get_by_text("You have not agreed to send word counts").wait_for()
    page.get_by_role("button", name="Remove xiomara").click()
    page.get_by_role("button", name="Remove xiomara").wait_for(state="detached")
    page.get_by_label("Name or word").fill("thandiwe")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("thandiwe, from app").wait_for()
    page.get_by_label("I mean it").check()
    page.get_by_role("button", name="Forget everything").click()
    page.get_by_text("counted the words of 0 utterances").wait_for()
    assert page.locator("#vocabulary li").count() == 0 and page.locator("#results > li").count() == 0


def test_reading_aloud(page: Any) -> None:
    _as(page, "gil")
    page.get_by_role("button", name="Begin").click()
    for number in range(1, 4):
        page.get_by_text(f"{number} of 30:").wait_for(timeout=30_000)
        page.get_by_role("button", name="Read this").click()
        page.wait_for_timeout(600)
        page.get_by_role("button", name="Done").click()
    page.get_by_text("4 of 30:").wait_for(timeout=30_000)
    page.get_by_role("button", name="End").click()
    page.get_by_text("3 phrases; of 1 kept aside").wait_for(timeout=30_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_axe_finds_nothing(browser: Any, server: Server, scheme: str, width: int, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, permissions=["microphone"], bypass_csp=True
    )
    page = context.new_page()
    page.goto(server.http)
    _as(page, f"eva {scheme} {width}")
    _heard(page).get_by_text("What else it could have been").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = [each for each in axe.run(page).response["violations"] if each["impact"] in ("serious", "critical")]
    assert not found, json.dumps(found, indent=1)[:3000]
    context.close()


def test_by_keyboard_alone(page: Any) -> None:
    _as(page, "fay")
    page.reload()
    page.get_by_text("counted the words of 0 utterances").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the microphone"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "microphone"
    page.keyboard.press("Space")
    page.locator("#results > li .words button").first.wait_for(timeout=30_000)
    page.keyboard.press("Space")
    page.get_by_role("button", name="Listen").wait_for(timeout=10_000)


def test_another_pages_script_gets_nothing(server: Server) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        found = httpx.post(f"{server.http}/v1/me/forget", json={"forget": True}, headers=headers)
        assert found.status_code in (400, 403)
