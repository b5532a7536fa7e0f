"""Named operators: tokens that are shown once, roles that end, and a trail that names who did what."""

from typing import Any

from server.aggregation.weights_file import dump_weights
from server.storage.schema import operators
from tests.server.parties import HEADERS, OPERATOR, UNPROTECTED, Operator, Party, initial


def add(http: Any, name: str, role: str) -> dict[str, str]:
    """A new operator's headers."""
    made = http.post("/v1/operator/operators", json={"name": name, "role": role}, headers=HEADERS)
    assert made.status_code == 201, made.text
    return {"Authorization": f"Bearer {made.json()['token']}"}


def test_a_token_is_shown_once_and_not_kept(http: Any) -> None:
    made = http.post("/v1/operator/operators", json={"name": "anna", "role": "viewer"}, headers=HEADERS).json()
    assert (made["name"], made["role"], made["created_by"], made["revoked_at"]) == ("anna", "viewer", "bootstrap", None)
    listed = http.get("/v1/operator/operators", headers=HEADERS)
    assert [entry["name"] for entry in listed.json()["operators"]] == ["anna"] and made["token"] not in listed.text
    with http.app.state.service.database.read() as connection:
        row = connection.execute(operators.select()).one()
    assert made["token"] not in str(row._asdict()) and row.token_sha256 not in listed.text
    me = http.get("/v1/operator/me", headers={"Authorization": f"Bearer {made['token']}"}).json()
    assert me == {"name": "anna", "role": "viewer"}


def test_names_are_given_once(http: Any) -> None:
    add(http, "anna", "viewer")
    http.post("/v1/operator/operators/anna/revoke", headers=HEADERS)
    for name, status in (("anna", 409), ("bootstrap", 409), ("", 422), ("a b", 422), ("x" * 65, 422)):
        answer = http.post("/v1/operator/operators", json={"name": name, "role": "viewer"}, headers=HEADERS)
        assert answer.status_code == status, name
    assert http.post("/v1/operator/operators", json={"name": "eve", "role": "root"}, headers=HEADERS).status_code == 422
    for name, words in (("nobody", "does not exist"), ("bootstrap", "operator token")):
        answer = http.post(f"/v1/operator/operators/{name}/revoke", headers=HEADERS)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_operator")
        assert words in answer.json()["detail"]


def test_revoking_ends_the_token_and_the_web_pages(http: Any) -> None:
    headers = add(http, "anna", "viewer")
    token = headers["Authorization"].removeprefix("Bearer ")
    assert http.post("/dashboard/sign-in", data={"token": token}, follow_redirects=False).status_code == 303
    assert "Sign out anna" in http.get("/dashboard").text
    http.post("/v1/operator/operators/anna/revoke", headers=HEADERS)
    answer = http.get("/v1/operator/status", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_revoked")
    assert http.get("/dashboard", follow_redirects=False).status_code == 303
    assert http.post("/dashboard/sign-in", data={"token": token}).status_code == 401


def test_the_trail_names_who_did_what(http: Any, operator: Operator, device: Party) -> None:
    headers = {"anna": add(http, "anna", "operator"), "bert": add(http, "bert", "administrator")}
    expected = [("bootstrap", "operator.add", "anna"), ("bootstrap", "operator.add", "bert")]

    def act(who: str, path: str, *actions: str, of: str = "", **content: Any) -> dict[str, Any]:
        """actions: that are written down of it; of: to what it is done, where that is not what the answer is of."""
        answer = http.post(f"/v1/operator/{path}", headers=headers[who], **content)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        expected.extend((who, action, of or found["id"]) for action in actions)
        return found

    plan = {"settings": UNPROTECTED}
    opened = act("anna", "rounds", "round.create", "round.open", json=plan)["id"]
    device.send_counts(opened, {1: 256})
    closed = act("anna", f"rounds/{opened}/close", "round.close")
    assert "closed by anna" in [move["note"] for move in closed["transitions"]]
    planned = act("bert", "rounds", "round.create", json={"open": False})["id"]
    assert act("bert", f"rounds/{planned}/open", "round.open")["state"] == "open"
    assert act("anna", f"rounds/{planned}/abandon", "round.abandon")["note"] == "abandoned by anna"
    act("anna", "marginals/0/publish", "marginals.publish", of="0", params={"note": "back"})
    act("anna", "models/base-1/publish", "model.publish", of="base-1")
    act("anna", "models/new?published=false", "model.push", of="new", content=dump_weights(initial(seed=1).weights))
    for step, given in (("roll-back", {}), ("promote", {"force": True, "note": "in a hurry"})):
        act("anna", "rollout", "rollout.begin", of="new", json={"version": "new"})
        act("anna", f"rollout/{step}", f"rollout.{step}", of="new", params=given)
    act("anna", f"devices/{device.id}/revoke", "device.revoke", of=device.id)
    act("bert", "enrolment-tokens", "enrolment.add", of="trial", json={"name": "trial"})
    act("bert", "enrolment-tokens/trial/revoke", "enrolment.revoke", of="trial")
    act("bert", "operators/anna/revoke", "operator.revoke", of="anna")
    found = operator.get("actions?limit=50")["actions"]
    assert [(entry["operator"], entry["action"], entry["subject"]) for entry in reversed(found)] == expected
    assert operator.get("marginals")["history"][0]["note"] == "back (published by anna)"
    http.post("/dashboard/sign-in", data={"token": OPERATOR})
    page = http.get("/dashboard/audit").text
    for words in ("closed by anna", "published by anna", "operator.revoke anna", "by bert", "sign-in dashboard"):
        assert words in page


def test_a_refused_action_leaves_no_trace(http: Any, operator: Operator) -> None:
    operator.open()
    for path in ("rounds", "rounds/none/close", "models/none/publish", "devices/none/revoke"):
        assert http.post(f"/v1/operator/{path}", headers=HEADERS).is_client_error
    assert [entry["action"] for entry in operator.get("actions")["actions"]] == ["round.open", "round.create"]
