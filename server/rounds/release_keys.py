"""The secret key of a release's noise: bound to its round, its stream and the reports that were accepted.

A key is stored before anything is drawn from it. So a server that was killed at any point draws the same noise again,
and so does one that was brought back from a backup taken meanwhile; and where the accepted reports are others, there is
another key, and every report is charged for another draw. A key is forgotten together with the reports: whoever has it
can take the noise off."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.ledger import Caps, record
from server.privacy.noise import key_stream, new_key
from server.problems import Refusal
from server.storage.database import forget, overwrite
from server.storage.schema import release_keys, reports, rounds


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """A stored key. inputs_sha256: of the accepted reports that it is for."""

    round_id: str
    stream: str
    inputs_sha256: str
    key: bytes = field(repr=False)

    def source(self, inputs: bytes) -> RandomBytes:
        """The key's bytes from the first on, the same at every call. inputs: what the noise is added to; so even a
        stored count that was damaged since gets noise of its own."""
        bound = (self.round_id, self.stream, self.inputs_sha256, sha256(inputs).hexdigest())
        return key_stream(self.key, "\n".join(bound))


def draws_noise(stream: str, settings: RoundSettings) -> bool:
    """Whether the server itself adds noise to what a stream releases."""
    if stream == "deltas":
        return settings.noise_multiplier > 0
    if stream == "words":
        return True
    return settings.marginals is not None and settings.marginals.trust == "central"


def accepted_reports(connection: Connection, round_id: str, stream: str, *, whole: bool = False) -> list[Row[Any]]:
    """Id, device and digest of every accepted report, or ``whole``, in the order of their ids: a resumed aggregation
    adds in the same order and rounds the same way."""
    query = select(reports) if whole else select(reports.c.id, reports.c.device_id, reports.c.body_sha256)
    own = (reports.c.round_id == round_id, reports.c.stream == stream, reports.c.counted)
    return list(connection.execute(query.where(*own).order_by(reports.c.id)))


def digest_of(contributions: Iterable[Row[Any]]) -> str:
    """SHA-256 of reports in the order of their ids: which there are, and what each held."""
    return sha256("".join(f"{each.id} {each.body_sha256}\n" for each in contributions).encode()).hexdigest()


def obtain_key(
    connection: Connection, round_id: str, stream: str, settings: RoundSettings, caps: Caps, now: float
) -> ReleaseKey | None:
    """The key of what is accepted now: the one that is stored, or a fresh one, which is stored with the caller's
    transaction; None where too few were accepted for a release. Draw from it only once that is committed. A fresh key
    beside one of other reports charges every report again. Raises PrivacyError where that would take a device past its
    cap, or where the key was forgotten."""
    accepted = accepted_reports(connection, round_id, stream)
    if len(accepted) < settings.minimum and not settings.amplified:
        return None
    inputs_sha256 = digest_of(accepted)
    own = (release_keys.c.round_id == round_id, release_keys.c.stream == stream)
    stored = list(connection.execute(select(release_keys).where(*own)))
    for row in stored:
        if row.inputs_sha256 == inputs_sha256:
            if row.key is None:
                raise PrivacyError(f"{stream}: the key of this release was forgotten; its noise is not drawn again")
            return ReleaseKey(round_id, stream, inputs_sha256, bytes(row.key))
    if stored:
        _charge_again(connection, round_id, stream, settings, caps, accepted, len(stored) + 1, now)
    made = ReleaseKey(round_id, stream, inputs_sha256, new_key())
    digest = sha256(made.key).hexdigest()
    connection.execute(insert(release_keys).values(**asdict(made), key_sha256=digest, made_at=now))
    return made


def forget_keys(connection: Connection, round_id: str) -> None:
    """Delete a round's keys; their digests stay."""
    overwrite(connection, "release_keys", round_id, binaries=["key"])
    connection.execute(update(release_keys).where(release_keys.c.round_id == round_id).values(key=None))
    forget(connection, "release_keys")


def _charge_again(
    connection: Connection,
    round_id: str,
    stream: str,
    settings: RoundSettings,
    caps: Caps,
    accepted: Sequence[Row[Any]],
    draw: int,
    now: float,
) -> None:
    if settings.amplified:
        row = connection.execute(select(rounds).where(rounds.c.id == round_id)).one()
        whom = {"eligible": row.eligible, "eligible_at": row.opened_at}
        try:
            caps.charge_all(connection, round_id, [stream], settings, now, draw=draw, **whom)
        except Refusal as error:
            raise PrivacyError(f"the reports have changed, and this is another draw: {error.detail}") from error
        return
    for report in accepted:
        if not caps.allow(connection, report.device_id, stream, settings):
            raise PrivacyError(f"{stream}: the reports have changed, and another draw would pass a device's cap")
    own: dict[str, Any] = {"stream": stream, "round_id": round_id, "now": now, "draw": draw}
    charge = charge_for(stream, settings)
    for report in accepted:
        record(connection, device_id=report.device_id, report_id=report.id, charge=charge, **own)
