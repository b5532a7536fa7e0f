import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.main import get_command

from device_sdk.errors import ConfigurationError
from server.lab.commands.corpora import app
from server.lab.corpora import kind_of, open_corpus
from server.lab.corpora.pack import PACKED, pack
from server.lab.corpora.readers import recording_of
from server.lab.corpora.roles import ROLES, SPLIT
from tests.server.lab.test_read_roles import write_barista

SECONDS = {"librispeech": 4.0, "speech_commands": 1.0}


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    """Coffee orders (FLAC), digits (8 kHz), sentences of LibriSpeech readers and words of ten people (Opus)."""
    noise = np.random.default_rng(0)
    (tmp_path / "fsdd" / "recordings").mkdir(parents=True)
    for name in ("7_jackson_0", "3_theo_1", "9_george_0"):
        soundfile.write(tmp_path / "fsdd" / "recordings" / f"{name}.wav", 0.1 * noise.standard_normal(4000), 8_000)
    people = {"librispeech": [name for role in ROLES for name in SPLIT["librispeech"].get(role, ())]}
    people["speech_commands"] = [f"{number:08x}" for number in range(10)]
    for kind, seconds in SECONDS.items():
        rows = [{"id": f"{who}-{n}", "speaker": who, "text": "go left"} for who in people[kind] for n in range(3)]
        (tmp_path / kind).mkdir()
        sound, file = 0.1 * noise.standard_normal(int(16_000 * seconds)), BytesIO()
        soundfile.write(file, sound, 16_000, "OPUS", format="OGG", compression_level=0.93)
        for row in rows:
            row["audio"] = f"{row['id']}.opus"
            (tmp_path / kind / row["audio"]).write_bytes(file.getvalue())
        (tmp_path / kind / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    written = write_barista(tmp_path / "barista", ROLES)
    return [written, *(f"{kind}:{tmp_path / kind}" for kind in ("fsdd", *SECONDS))]


def test_a_pack_is_read_as_its_kinds(sources: list[str], tmp_path: Path) -> None:
    """All that is for base training or development, with the same voices, words and slots; Opus as it was."""
    out = tmp_path / "packed"
    get_command(app).main(["pack", *sources, "-o", str(out), "--json"], standalone_mode=False)
    for source in sources:
        kind = kind_of(source)
        for role in ROLES:
            before, after = (open_corpus(each, (role,), seed=None) for each in (source, f"{kind}:{out}"))
            expected = {one.id: (one.speaker, one.sure_text, one.slots) for one in before.utterances}
            found = {one.id: (one.speaker, one.sure_text, one.slots) for one in after.utterances}
            assert found == (expected if role in PACKED else {}), (kind, role)
            originals = {one.id: one for one in before.utterances}
            for one in after.utterances:
                path, original = recording_of(one), recording_of(originals[one.id])
                assert path is not None and original is not None and soundfile.info(path).subtype == "OPUS"
                assert original.suffix != ".opus" or path.read_bytes() == original.read_bytes()
                assert one.load().size == originals[one.id].load().size
    assert "LibriVox" in (out / "LICENCES.txt").read_text()


@pytest.mark.parametrize("megabytes", [0.2, 0.3, 0.5])
def test_corpora_share_the_hours_by_whole_voices(sources: list[str], tmp_path: Path, megabytes: float) -> None:
    out = tmp_path / "packed"
    found = pack(sources, out, megabytes)
    size = sum(path.stat().st_size for path in [*out.rglob("*.opus"), out / "manifest.jsonl"]) / 1e6
    assert size == pytest.approx(sum(taken["megabytes"] for taken in found.values())) and size <= megabytes
    said = open_corpus(f"librispeech:{out}", ROLES)
    counts = [len(said.of_speakers(name)) for name in said.speakers]
    assert sum(count < 3 for count in counts) <= 1 and found["librispeech"]["voices"] == len(counts)
    hours = sorted(taken["hours"] for kind, taken in found.items() if len(open_corpus(f"{kind}:{out}", ROLES)))
    assert found["librispeech"]["hours"] == hours[-1]  # the others are all there, or as much
    development = {*SPLIT["librispeech"]["development"]}
    assert development <= set(said.speakers) or set(said.speakers) <= development  # which come first


def test_what_could_not_be_read_again_is_refused(sources: list[str], tmp_path: Path) -> None:
    for given, out in (
        (["made:base"], tmp_path / "new"),
        ([sources[0], sources[0]], tmp_path / "new"),
        (sources, tmp_path),
    ):
        with pytest.raises(ConfigurationError, match=r"expected each once|expected a new folder"):
            pack(given, out, 1.0)
