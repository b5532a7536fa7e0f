"""The operator's side of a server's HTTP interface: for commands, simulations and an operator's own programs. What the
server answers comes back as the messages of :mod:`server.operators.messages`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from device_sdk.checkin.connection import Refused, refusal
from device_sdk.errors import CheckInError
from server.operators import messages
from server.operators.accounts import Role
from server.plans.round import RolloutSettings, RoundSettings

if TYPE_CHECKING:
    import httpx

_ADDRESS = "expected an address such as http://127.0.0.1:8470"
_KEPT = "`idiolect serve` writes its own as operator_token to idiolect-server.tokens.json, or where --token-file says"

_Answer = TypeVar("_Answer", bound=BaseModel)


class OperatorClient:
    """Owns the connections of whoever runs one server. Every request raises CheckInError where the server is out of
    reach or answers what is none of its messages, and Refused, with status and code, where it refuses."""

    def __init__(
        self, server: str, token: str, *, timeout: float = 600.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        """timeout: seconds; closing a round answers when its result is published, which may take minutes."""
        import httpx

        self._url = f"{server.rstrip('/')}/v1/operator/"
        self._token = token
        self._http = httpx.Client(timeout=timeout, transport=transport)

    # Rounds

    def me(self) -> messages.Me:
        """Whose token this is."""
        return self._read(messages.Me, "me")

    def status(self) -> messages.Status:
        """What is current, and which rounds are under way."""
        return self._read(messages.Status, "status")

    def privacy(self) -> messages.Privacy:
        """The ledger, and the caps."""
        return self._read(messages.Privacy, "privacy")

    def rounds(self, limit: int = 100) -> list[messages.Round]:
        """The newest first."""
        return self._read(messages.Rounds, "rounds", limit=limit).rounds

    def round(self, round_id: str) -> messages.Round:
        """One round, with its moves and its groups."""
        return self._read(messages.Round, f"rounds/{_part(round_id)}")

    def create_round(self, settings: RoundSettings | None = None, *, opened: bool = True) -> messages.Round:
        """opened: whether it takes reports at once; only one round can."""
        wanted = (settings or RoundSettings()).model_dump(mode="json")
        return self._do(messages.Round, "rounds", json={"settings": wanted, "open": opened})

    def open_round(self, round_id: str) -> messages.Round:
        """Lets a planned round take reports."""
        return self._do(messages.Round, f"rounds/{_part(round_id)}/open")

    def close_round(self, round_id: str) -> messages.Round:
        """Waits until its result is published, or until its devices have nothing left to do but add up their counts."""
        return self._do(messages.Round, f"rounds/{_part(round_id)}/close")

    def abandon_round(self, round_id: str) -> messages.Round:
        """Ends a round without a release; what devices sent to it is cleared."""
        return self._do(messages.Round, f"rounds/{_part(round_id)}/abandon")

    # Models and marginals

    def models(self) -> messages.Models:
        """Every version, and every publication."""
        return self._read(messages.Models, "models")

    def push_model(self, version: str, weights: bytes, *, note: str = "", published: bool = True) -> messages.Model:
        """weights: safetensors bytes, of the current model's names and shapes."""
        asked = {"note": note, "published": published}
        return self._do(messages.Model, f"models/{_part(version)}", content=weights, params=asked)

    def publish_model(self, version: str, *, note: str = "") -> messages.Model:
        """Makes a registered model the current one, an older one too."""
        return self._do(messages.Model, f"models/{_part(version)}/publish", params={"note": note})

    def rollouts(self) -> messages.Rollouts:
        """The one that runs, and those before it."""
        return self._read(messages.Rollouts, "rollout")

    def begin_rollout(
        self, version: str, settings: RolloutSettings | None = None, *, note: str = ""
    ) -> messages.Rollout:
        """Have some of the devices get a registered model first. settings: those not given are the server's own."""
        wanted = None if settings is None else settings.model_dump(mode="json", exclude_unset=True)
        return self._do(messages.Rollout, "rollout", json={"version": version, "settings": wanted, "note": note})

    def promote_rollout(self, *, note: str = "", force: bool = False) -> messages.Rollout:
        """Gives the model to all devices. force: also where it hears held-out speech worse."""
        return self._do(messages.Rollout, "rollout/promote", params={"note": note, "force": force})

    def roll_back_rollout(self, *, note: str = "") -> messages.Rollout:
        """Takes the model back from the devices that have it."""
        return self._do(messages.Rollout, "rollout/roll-back", params={"note": note})

    def marginals(self) -> messages.MarginalsList:
        """Every version, and every publication."""
        return self._read(messages.MarginalsList, "marginals")

    def words(self, version: int, top: int = 20) -> messages.MarginalsWords:
        """One version of the marginals, and the words that it lifts most over the background."""
        return self._read(messages.MarginalsWords, f"marginals/{version}", top=top)

    def push_marginals(
        self, probabilities: NDArray[np.float64], *, note: str = "", published: bool = True
    ) -> messages.MarginalsVersion:
        """probabilities: over the public word list, float64 [words]."""
        values = b64encode(np.ascontiguousarray(probabilities, "<f8").tobytes()).decode()
        wanted = {"probabilities": values, "note": note, "publish": published}
        return self._do(messages.MarginalsVersion, "marginals", json=wanted)

    def publish_marginals(self, version: int, *, note: str = "") -> messages.MarginalsVersion:
        """Makes a version the current one, an older one too."""
        return self._do(messages.MarginalsVersion, f"marginals/{version}/publish", params={"note": note})

    # Who may do what

    def devices(self) -> Iterator[messages.DeviceEntry]:
        """All of them by id, fetched a page at a time."""
        after = ""
        while page := self._read(messages.Devices, "devices", after=after, limit=1000).devices:
            yield from page
            after = page[-1].device_id

    def revoke_device(self, device_id: str) -> None:
        """Lets the device in no more."""
        self._do(messages.DeviceRevoked, f"devices/{_part(device_id)}/revoke")

    def operators(self) -> list[messages.OperatorEntry]:
        """All of them, revoked ones too."""
        return self._read(messages.Operators, "operators").operators

    def add_operator(self, name: str, role: Role) -> messages.OperatorMade:
        """Its token is told this once."""
        return self._do(messages.OperatorMade, "operators", json={"name": name, "role": role})

    def revoke_operator(self, name: str) -> messages.OperatorEntry:
        """Its token and the pages that it opened end at once."""
        return self._do(messages.OperatorEntry, f"operators/{_part(name)}/revoke")

    def enrolment_tokens(self) -> list[messages.EnrolmentTokenEntry]:
        """All of them, without the tokens themselves."""
        return self._read(messages.EnrolmentTokens, "enrolment-tokens").enrolment_tokens

    def add_enrolment_token(
        self, name: str, *, uses: int | None = 1000, seconds: float | None = None
    ) -> messages.EnrolmentTokenMade:
        """The token is told this once. uses: how many devices it lets in, None for any number; seconds: how long."""
        wanted = {"name": name, "uses": uses, "seconds": seconds}
        return self._do(messages.EnrolmentTokenMade, "enrolment-tokens", json=wanted)

    def revoke_enrolment_token(self, name: str) -> messages.EnrolmentTokenEntry:
        """Lets no further device in; those that it let in stay."""
        return self._do(messages.EnrolmentTokenEntry, f"enrolment-tokens/{_part(name)}/revoke")

    def actions(self, limit: int = 100) -> list[messages.ActionEntry]:
        """What operators did, the newest first."""
        return self._read(messages.Actions, "actions", limit=limit).actions

    def close(self) -> None:
        """Ends the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, message: type[_Answer], path: str, **parameters: Any) -> _Answer:
        return self._told(message, path, self._request("GET", path, params=parameters))

    def _do(self, message: type[_Answer], path: str, **content: Any) -> _Answer:
        return self._told(message, path, self._request("POST", path, **content))

    def _told(self, message: type[_Answer], path: str, answer: dict[str, Any]) -> _Answer:
        try:
            return message.model_validate(answer)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in (message.__name__, *first["loc"]))
            raise CheckInError(
                f"{self._url}{path}: {where}: {first['msg']}; is the server of another version?"
            ) from error

    def _request(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        import httpx

        url = f"{self._url}{path}"
        if not self._token:
            raise CheckInError(f"no operator token; set IDIOLECT_OPERATOR_TOKEN or give --token; {_KEPT}")
        try:
            answer = self._http.request(method, url, headers={"Authorization": f"Bearer {self._token}"}, **content)
        except httpx.UnsupportedProtocol as error:
            raise CheckInError(f"{url}: cannot be reached; {_ADDRESS}") from error
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CheckInError(f"{url}: cannot be reached ({error}); is the server running?") from error
        if answer.is_error:
            refused = refusal(url, answer.status_code, answer.content)
            if (hint := {"bad_token": _KEPT, "no_such_route": _ADDRESS}.get(refused.code)) is not None:
                raise Refused(f"{refused}; {hint}", refused.status, refused.code)
            raise refused
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            where = f"{url}: found status {answer.status_code} without a JSON object"
            raise CheckInError(f"{where}; is this the server?")
        return found


def _part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
