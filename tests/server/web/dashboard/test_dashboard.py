"""The dashboard over a real server's state: who may look, what every page shows, and that nothing in it runs."""

import hashlib
import hmac
import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from server.aggregation.weights_file import dump_weights
from server.web.routes import dashboard as access
from tests.server.parties import NO_NOISE, OPERATOR, Operator, Party, initial

PAGES = ["", "/rounds", "/models", "/marginals", "/marginals/0", "/privacy", "/audit"]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Outline(HTMLParser):
    """Tags must close in order; collects what accessibility needs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.unnamed: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        assert tag not in {"script", "style", "iframe"}
        assert not any(name.startswith("on") or name == "style" for name in found)
        if tag in {"h1", "h2", "h3"}:
            self.headings.append(tag)
        if (tag == "svg" and found.get("role") == "img") or tag in {"progress", "nav"}:
            self.unnamed += [tag] if not found.get("aria-label") else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def signed_in(http: Any) -> Any:
    answer = http.post("/dashboard/sign-in", data={"token": OPERATOR}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
    assert {"httponly", "samesite=strict"} <= set(answer.headers["set-cookie"].lower().split("; "))
    return http


def outline(answer: Any) -> Outline:
    assert answer.status_code == 200, answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    found = Outline(answer.text)
    assert found.headings[:1] == ["h1"] and found.headings.count("h1") == 1 and found.unnamed == []
    return found


@pytest.mark.parametrize("page", [*PAGES, "/rounds/any"])
def test_without_a_ticket_every_page_leads_to_the_sign_in(http: Any, page: str) -> None:
    answer = http.get(f"/dashboard{page}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/sign-in")
    http.cookies.set(access.COOKIE, access.ticket("bootstrap", "another token", 2e9), path="/dashboard")
    assert http.get(f"/dashboard{page}", follow_redirects=False).status_code == 303


def test_a_wrong_token_is_told_so_and_signing_out_ends_it(http: Any) -> None:
    refused = http.post("/dashboard/sign-in", data={"token": "wrong"})
    assert refused.status_code == 401 and "not the token of an operator" in refused.text
    assert access.COOKIE not in http.cookies
    http.post("/dashboard/sign-in", data={"token": OPERATOR})
    assert outline(http.get("/dashboard"))
    http.post("/dashboard/sign-out")
    assert http.get("/dashboard", follow_redirects=False).status_code == 303


@pytest.mark.parametrize("page", PAGES)
def test_pages_of_a_new_server(signed_in: Any, page: str) -> None:
    outline(signed_in.get(f"/dashboard{page}"))


def test_pages_after_rounds(signed_in: Any, operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    parties = devices(3)
    for number in range(2):
        opened = operator.open(minimum=2, goal=3)
        for party in parties[: 2 + number]:
            assert party.send_counts(opened, {3: 200, 5: 100}).status_code == 200
        operator.close(opened)
    waiting = operator.open(minimum=2, goal=3)
    parties[0].send_counts(waiting, {3: 10})
    pages = {page: signed_in.get(f"/dashboard{page}") for page in [*PAGES, f"/rounds/{opened}", f"/rounds/{waiting}"]}
    for answer in pages.values():
        outline(answer)
    assert "Reports that came, by round" in pages[""].text
    assert re.search(r'<progress aria-label="marginals reports of round 3" value="1" max="3">', pages[""].text)
    assert "1 of 3" in pages["/rounds"].text and "word3" in pages["/marginals"].text
    assert "discrete_laplace" in pages[f"/rounds/{opened}"].text
    assert "round 2: closing → aggregated" in pages["/audit"].text
    assert signed_in.get("/dashboard/marginals/99").status_code == 404
    assert signed_in.get("/dashboard/rounds/none").status_code == 404


def test_words_that_were_released_are_shown(signed_in: Any, operator: Operator, devices) -> None:
    opened = operator.open(marginals=None, words={"epsilon": NO_NOISE})
    for party in devices(2):
        party.send_words(opened, "cortado")
    assert "words reports of round 1" in signed_in.get("/dashboard").text
    operator.close(opened)
    page = signed_in.get(f"/dashboard/rounds/{opened}")
    outline(page)
    assert "cortado (2)" in page.text and "words: epsilon" in signed_in.get("/dashboard/privacy").text
    empty = operator.open(marginals=None, words={})
    devices(1)[0].send_words(empty, "babyccino")
    operator.close(empty)
    page = signed_in.get(f"/dashboard/rounds/{empty}").text
    assert "No word was named by enough devices." in page and "babyccino" not in page


def test_live_pages_are_read_again_until_that_is_stopped(signed_in: Any) -> None:
    assert 'http-equiv="refresh"' in signed_in.get("/dashboard").text
    assert 'http-equiv="refresh"' not in signed_in.get("/dashboard?live=0").text


def test_what_operators_write_is_shown_as_text(signed_in: Any, operator: Operator) -> None:
    operator.post("marginals/0/publish", params={"note": '<script>alert(1)</script>"><img src=x onerror=alert(1)>'})
    found = signed_in.get("/dashboard/audit")
    outline(found)
    assert "&lt;script&gt;alert(1)" in found.text


def test_the_root_and_the_style(http: Any) -> None:
    assert http.get("/", follow_redirects=False).headers["location"] == "/dashboard"
    style = http.get("/dashboard/style.css")
    assert style.headers["content-type"].startswith("text/css") and "prefers-color-scheme: dark" in style.text


@pytest.mark.parametrize(
    ("found", "now", "name"),
    [
        (access.ticket("anna", "secret", 1000.0), 1000.0, "anna"),
        (access.ticket("a.b", "secret", 1000.0), 1000.0 + access.SECONDS - 1, "a.b"),
        (access.ticket("anna", "secret", 1000.0), 1000.0 + access.SECONDS + 1, None),
        (access.ticket("anna", "other", 1000.0), 1000.0, None),
        (access.ticket("anna", "secret", 1000.0).replace("44200", "44201"), 1000.0, None),
        (access.ticket("anna", "secret", 1000.0).replace("anna", "bert"), 1000.0, None),
        ("", 0.0, None),
        ("44200", 0.0, None),
        ("١٢.x.y", 0.0, None),
        ("99999999999999999999." + "0" * 64 + ".anna", 0.0, None),
    ],
)
def test_tickets(found: str, now: float, name: str | None) -> None:
    assert access.holder(found, "secret", now) == name


def test_a_rollout_is_shown_while_it_runs_and_afterwards(signed_in: Any, operator: Operator) -> None:
    operator.post("models/v2", content=dump_weights(initial(seed=2).weights), params={"published": False})
    operator.post("rollout", json={"version": "v2", "settings": {"share": 0.25}, "note": "a <b>trial</b>"})
    page = signed_in.get("/dashboard/models")
    outline(page)
    assert '<span class="state running">running</span>' in page.text
    assert '<span class="state rollout">rollout</span>' in page.text
    assert "25 %" in page.text and "0 of 0" in page.text and "<b>trial" not in page.text
    operator.post("rollout/roll-back", params={"note": "too slow"})
    page = signed_in.get("/dashboard/models")
    assert '<span class="state rolled back">rolled back</span>' in page.text and "too slow" in page.text
    assert '<span class="state rollout">' not in page.text
    audit = signed_in.get("/dashboard/audit").text
    assert "rollout of v2" in audit and "too slow" in audit


def test_a_ticket_tells_nothing_of_the_token(http: Any) -> None:
    """Whoever has a ticket knows everything in it, and cannot try out tokens at home."""
    viewer = Operator(http).post("operators", json={"name": "vera", "role": "viewer"})["token"]
    http.post("/dashboard/sign-in", data={"token": viewer}, follow_redirects=False)
    expiry, mark, name = http.cookies[access.COOKIE].split(".", 2)
    tokens = (OPERATOR.encode(), viewer.encode())
    keys = (*tokens, *(hmac.digest(token, b"idiolect dashboard ticket", "sha256") for token in tokens))
    assert mark not in {hmac.new(key, f"{expiry}.{name}".encode(), hashlib.sha256).hexdigest() for key in keys}
    assert http.get("/dashboard", follow_redirects=False).status_code == 200


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        ({"origin": "https://elsewhere.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://testserver:81"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://testserver"}, False),
        ({}, True),
        ({"origin": "http://testserver"}, True),
        ({"origin": "http://testserver", "sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"origin": "https://idiolect.example", "host": "idiolect.example"}, True),
    ],
)
def test_only_its_own_pages_sign_in_and_out(http: Any, headers: dict[str, str], own: bool) -> None:
    """Also behind a proxy that speaks TLS, and by programs that are no browser. With a token of an attacker's own, an
    operator would work under another name without knowing it."""
    for page, form in (("sign-in", {"token": OPERATOR}), ("sign-out", {})):
        answer = http.post(f"/dashboard/{page}", data=form, headers=headers, follow_redirects=False)
        assert answer.status_code == (303 if own else 403), answer.text
        assert (access.COOKIE in answer.headers.get("set-cookie", "")) is own
        http.post("/dashboard/sign-in", data={"token": OPERATOR}, follow_redirects=False)
    assert http.get("/dashboard", follow_redirects=False).status_code == 200
