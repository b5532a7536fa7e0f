import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.bundle.piece_ngram import START
from device_sdk.compilation import SWITCH
from device_sdk.decoding import Hotword, Hotwords
from device_sdk.decoding import block as scores
from device_sdk.decoding.beam import greedy, paths
from device_sdk.decoding.contextual_biasing import Guide, Guided, Ngram
from device_sdk.decoding.prefixes import Prefix
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.errors import ConfigurationError
from device_sdk.runtimes import native_kernels
from rescoring.words import WordList
from server.lab.training.ngram import estimate, over_pieces
from tests.device_sdk.decoding.lattices import RandomLattice, exhaustive, search
from tests.device_sdk.decoding.test_hotwords import Pieces

WIDE = 100_000


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from(
        [(4, 3, 1), (3, 3, 2), (2, 4, 2), (5, 2, 1), (2, 3, 3), (1, 4, 2), (4, 2, 2), (4, 3, 0), (5, 2, 0)]
    ),
    sharpness=st.floats(0.1, 4.0),
    cut=st.integers(0, 5),
)
def test_a_wide_beam_is_the_exhaustive_search(seed, shape, sharpness, cut):
    count, pieces, symbols = shape
    lattice = RandomLattice(seed, pieces, sharpness)
    expected = exhaustive(lattice, count, symbols)
    decoding = DecodingSettings(beam=WIDE, symbols_per_frame=symbols, threshold=np.inf)
    found = paths(search(lattice, count, decoding, [cut]))
    assert {path.tokens for path in found} == set(expected)
    assert all(better.score >= worse.score for better, worse in itertools.pairwise(found))
    for path in found:
        score, times = expected[path.tokens]
        assert path.score == pytest.approx(score, abs=1e-9) and list(path.frames) == times


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    cuts=st.just(range(30)) | st.lists(st.integers(0, 30), max_size=6),
    bias=st.floats(0.0, 6.0),
    guided=st.sampled_from([None, "hotwords", "both"]),
    symbols=st.integers(0, 2),
    way=st.sampled_from(["sum", "modified"]),
    threshold=st.sampled_from([0.5, 2.0, 5.0]),
)
def test_blocks_do_not_change_the_search(seed, cuts, bias, guided, symbols, way, threshold):
    lattice, decoding = RandomLattice(seed, 6, 2.0, bias), DecodingSettings(4, 4, symbols, threshold, search=way)
    ngram = drawn_ngram(6, seed) if guided == "both" else None
    guide = Hotwords.build(["ab", Hotword("a b", 3.0), "baa"]).guide(Pieces("ab", 1), ngram) if guided else None
    whole, parts = (search(lattice, 30, decoding, each, guide) for each in ((), cuts))
    assert paths(whole) == paths(parts) and whole.frame == parts.frame == 30


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), width=st.integers(2, 5), bias=st.floats(0.0, 3.0), sharpness=st.floats(0.5, 3.0))
def test_a_modified_search_adds_up_what_it_has_pruned(seed, width, bias, sharpness):
    """One symbol a frame: of all steps the best ``width``, of which those to equal tokens add up."""
    lattice, expected = RandomLattice(seed, 4, sharpness, bias), {(): 0.0}
    for frame in range(8):
        steps = [
            (score + float(step), tokens + (symbol,) * (symbol > 0))
            for tokens, score in expected.items()
            for symbol, step in enumerate(lattice.log_probs(frame, tokens))
        ]
        expected = {}
        for score, tokens in sorted(steps, reverse=True)[:width]:
            expected[tokens] = np.logaddexp(expected.get(tokens, -np.inf), score)
    decoding = DecodingSettings(width, width, 0, np.inf, search="modified")
    found = {path.tokens: path for path in paths(search(lattice, 8, decoding))}
    assert {tokens: path.score for tokens, path in found.items()} == pytest.approx(expected, abs=1e-5)
    assert next(iter(found)) == max(expected, key=lambda tokens: expected[tokens] / (1 + len(tokens)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), weight=st.floats(0.1, 2.0), each=st.floats(-1.0, 2.0), symbols=st.integers(0, 2))
def test_an_ngram_orders_the_search(seed, weight, each, symbols):
    lattice, ngram = RandomLattice(seed, 3, 1.5), drawn_ngram(3, seed, weight, each)

    def bonus(tokens):
        context, gained = START, 0.0
        for token in tokens:
            context, more = ngram.read(context, token)
            gained += more
        return gained

    decoding = DecodingSettings(beam=WIDE, symbols_per_frame=symbols, threshold=np.inf)
    found = search(lattice, 3, decoding, guide=Guide(None, ngram))
    expected = exhaustive(lattice, 3, symbols)
    assert {path.tokens: path.score for path in paths(found)} == pytest.approx(
        {tokens: score for tokens, (score, _) in expected.items()}
    )
    assert {path.tokens: path.pieces for path in paths(found)} == pytest.approx(
        {each: bonus(each) for each in expected}
    )
    ranks = {tokens: score + bonus(tokens) for tokens, (score, _) in expected.items()}
    assert [ranks[prefix.tokens()] for prefix in found.prefixes] == pytest.approx(sorted(ranks.values(), reverse=True))


def drawn_ngram(pieces, seed, weight=0.5, each=0.4):
    generator = np.random.default_rng(seed)
    sentences = [generator.integers(1, pieces, generator.integers(1, 9)).tolist() for _ in range(40)]
    words = WordList(("<unk>", *map(str, range(1, pieces))))
    return Ngram(over_pieces(estimate(sentences, words, 3, (1, 1, 2))), weight, each)


def test_the_predictor_sees_every_prefix_once():
    lattice = RandomLattice(3, 5, 2.0, 1.0)
    search(lattice, 40, DecodingSettings(beam=4, nbest=4))
    assert len(lattice.predicted) == len(set(lattice.predicted)) and lattice.calls <= 1 + 2 * 40


def test_compaction_keeps_the_result(monkeypatch):
    lattice, decoding, cuts = RandomLattice(11, 5, 1.0), DecodingSettings(beam=4, nbest=4), range(0, 60, 3)
    expected = paths(search(lattice, 60, decoding, cuts))
    monkeypatch.setattr("device_sdk.decoding.beam._CACHED_PREFIXES", -100)
    beam = search(lattice, 60, decoding, cuts)
    assert paths(beam) == expected and len(beam.tree) < 60
    beam.tree.compact(beam.prefixes)
    assert len(beam.tree) == 4


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), bias=st.floats(1.0, 7.0), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_hypotheses_set_aside_get_the_blanks_they_missed(seed, bias, cuts):
    lattice = RandomLattice(seed, 5, 2.5, bias)
    beam = search(lattice, 40, DecodingSettings(beam=6, nbest=6, threshold=1.0), cuts)
    found = {path.tokens: path for path in paths(beam)}
    assert len(found) == 6 and set(beam.prefixes[len(beam.prefixes) - len(beam.aside) :]) == set(beam.aside)
    for prefix, each in beam.aside.items():
        tokens = prefix.tokens()
        blanks = [float(lattice.log_probs(frame, tokens)[0]) for frame in range(each.since, 40)]
        assert found[tokens].score == pytest.approx(each.alignments.score + sum(blanks), abs=1e-9)
    oldest = min((each.since for each in beam.aside.values()), default=40)
    assert all(first + len(encoded) > oldest for first, encoded in beam.heard)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), sharpness=st.floats(1.0, 4.0), threshold=st.floats(0.5, 3.0))
def test_pruning_never_adds_to_a_score(seed, sharpness, threshold):
    lattice = RandomLattice(seed, 3, sharpness, 2.0)
    expected = exhaustive(lattice, 5, 1)
    found = paths(search(lattice, 5, DecodingSettings(beam=6, nbest=6, symbols_per_frame=1, threshold=threshold)))
    assert len(found) == 6
    for path in found:
        assert path.score <= expected[path.tokens][0] + 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), symbols=st.integers(0, 3), bias=st.floats(0, 4), cuts=st.lists(st.integers(0, 20)))
def test_greedy_takes_the_best_symbol_until_it_is_blank(seed, symbols, bias, cuts):
    lattice = RandomLattice(seed, 5, 2.0, bias)
    tokens, times, score = [], [], 0.0
    for frame in range(20):
        for emitted in range(max(1, symbols + 1)):
            scores = lattice.log_probs(frame, tuple(tokens))
            best = 0 if emitted == symbols > 0 else int(scores.argmax())
            score += float(scores[best])
            if best == 0:
                break
            tokens.append(best)
            times.append(frame)
    decoding = DecodingSettings(beam=1, nbest=1, symbols_per_frame=symbols)
    (path,) = paths(search(lattice, 20, decoding, cuts, function=greedy))
    assert (path.tokens, path.frames) == (tuple(tokens), tuple(times))
    assert path.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "beam": (0, 2.5),
        "nbest": (0, 9),
        "search": ("greedy", None),
        "symbols_per_frame": (-1,),
        "threshold": (0.0, float("nan")),
        "block_seconds": (0.001, 60.0),
        "pause_seconds": (0.0, -1.0, float("nan")),
        "max_seconds": (-1.0, float("inf")),
    }.items(),
)
def test_settings_outside_their_domain_are_named(field, values):
    for value in values:
        with pytest.raises(ConfigurationError, match=rf"decoding\.{field}"):
            DecodingSettings(**{field: value})


@pytest.fixture(params=["numpy", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native":
        monkeypatch.delenv(SWITCH, raising=False)
        found = native_kernels.native_module()
        if found is None or not found.LEVEL:
            pytest.skip("this tree holds no native kernels of these sources; `make native` compiles them")
        monkeypatch.setattr(scores, "_native", found)
    monkeypatch.setattr(scores, "_quick", request.param == "native")
    return str(request.param)


@pytest.mark.parametrize("shape", [(1, 1, 16), (3, 12, 256), (2, 5, 48), (8, 1, 7), (2, 0, 32), (1, 3, 2)])
def test_edges_are_the_blank_and_the_best_label(way: str, shape: tuple[int, int, int]) -> None:
    given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given[:1, :, 0] = 9.0  # blank is no label even where it is best
    blanks, peaks = scores.edges(given)
    assert blanks == given[:, :, 0].ravel().tolist()
    assert peaks == [max(row[1:].tolist()) for prefix in given for row in prefix]


def test_arrays_that_lie_apart_are_read_too(way: str) -> None:
    whole = np.random.default_rng(1).normal(size=(4, 6, 32)).astype(np.float32)
    assert scores.edges(whole[::2]) == scores.edges(whole[::2].copy())


@given(st.floats(-20, 1), st.integers(0, 11))
def test_above_is_more_than_the_limit_as_float32_has_it(limit: float, place: int) -> None:
    given = np.random.default_rng(2).uniform(-20, 0, (12, 64)).astype(np.float32)
    given[place, 5] = np.float32(limit)
    rows, labels, values, sums = scores.above([given], [place], [0.0], [limit], 64)
    row = given[place]
    assert labels == [label for label in range(1, 64) if row[label] > np.float32(limit)]
    assert values == sums == row[labels].tolist() and 5 not in labels and rows == [0] * len(labels)


@pytest.mark.parametrize("pieces", [7, 32, 600, 2500])
@pytest.mark.parametrize("most", [0, 1, 8, 31, 20_000])
@pytest.mark.parametrize("low", [-9.0, 1.0, 9.0])
def test_the_best_of_all_rows_are_given(way: str, pieces: int, most: int, low: float) -> None:
    """Of equal ones the last, and all in their order where there are no more than that."""
    given = np.random.default_rng(3).normal(size=(4, pieces)).astype(np.float32).round(1)
    places, bases, limits = [3, 0, 2], [0.0, -1.0, 0.5], [low, low + 0.5, low]
    every = [
        (bases[row] + float(value), row, label, float(value))
        for row in range(3)
        for label, value in enumerate(given[places[row]])
        if label and value > np.float32(limits[row])
    ]
    expected = every if len(every) <= most else sorted(every, reverse=True)[:most]
    found = scores.above([given, given, given.copy()], places, bases, limits, most)
    assert list(zip(*found, strict=True)) == [(*each[1:], each[0]) for each in expected]


_NATS = st.floats(-9.0, 0.0).map(lambda nats: round(nats, 1))


@given(st.lists(_NATS, max_size=12), st.lists(_NATS, max_size=12), st.integers(1, 16), st.data())
def test_what_the_beam_has_no_room_for_is_behind_its_width_best(
    reached: list[float], ranks: list[float], width: int, data: st.DataObject
) -> None:
    """Ties go to what is new, in its order; what only adds to the beam's own takes no room."""
    new = [at for at in range(len(reached)) if data.draw(st.booleans())]
    outside = scores._outside(new, reached, ranks, width)
    best = sorted([*((reached[at], 1, -new.index(at), at) for at in new), *((rank, 0, 0, -1) for rank in ranks)])
    assert outside == set(new) - {at for *_, at in best[::-1][:width]}


@pytest.mark.parametrize("width", [1, 7, 400])
@pytest.mark.parametrize("pieces", [9, 40])
def test_an_ngram_weighs_what_extends_a_hypothesis(way: str, pieces: int, width: int) -> None:
    generator = np.random.default_rng([pieces, width])
    ngram = drawn_ngram(pieces, pieces)
    given = generator.uniform(-9, 0, (12, pieces)).astype(np.float32)
    prefixes, rows, totals = [], [], generator.uniform(-3, 0, 5).tolist()
    for number in range(5):
        context = START
        for piece in generator.integers(1, pieces, 3).tolist():
            context, _ = ngram.read(context, piece)
        prefixes.append(Prefix(None, 0, Guided(0.25 * number, context=context)))
        rows.append(scores.Row(0, 2, [0.0], [0.0], given, 2 * number))
    limit, expected = -6.0, []
    for at in (0, 2, 3, 4):
        for label in range(1, pieces):
            value = float(given[2 * at + 1, label])
            rank = totals[at] + prefixes[at].bonus + value + ngram.read(prefixes[at].guided.context, label)[1]
            if rank > limit:
                expected.append((rank, totals[at] + value, at, label))
    if len(expected) > width:
        expected = sorted(expected, reverse=True)[:width]
    found = scores._extensions(prefixes, totals, rows, [0, 2, 3, 4], 1, limit, width, Guide(None, ngram))
    assert expected and list(zip(*found, strict=True)) == [(*each[1:], each[0]) for each in expected]


def test_bad_sizes_are_refused_natively(way: str) -> None:
    if way == "numpy":
        return
    given, rows = np.zeros((1, 1, 16), np.float32), [np.zeros((2, 16), np.float32)]
    for name, arguments in (
        ("edges", (1, 1, 24, given)),
        ("edges", (1, 2, 16, given)),
        ("edges", (1, 1, 8, given)),
        ("above", (rows, [2], [0.0], [0.0], 1)),
        ("above", (rows, [-1], [0.0], [0.0], 1)),
        ("above", (rows, [0], [0.0], [0.0], -1)),
        ("above", ([given], [0], [0.0], [0.0], 1)),
        ("above", ([given[0].astype(np.float64)], [0], [0.0], [0.0], 1)),
        ("above", (2 * rows, [0, 1], [0.0], [0.0, 0.0], 1)),
        ("above", (rows, [0], [0.0], [-1.0], 1, [10_000], -9.0, *drawn_ngram(16, 1).native)),
        ("above", (rows, [0], [0.0], [-1.0], 1, [], -9.0, *drawn_ngram(16, 1).native)),
        ("above", (rows, [0], [0.0], [1.0], 1, [], -9.0, *drawn_ngram(16, 1).native)),
        ("above", ([np.zeros((2, 32), np.float32)], [0], [0.0], [-1.0], 1, [0], -9.0, *drawn_ngram(16, 1).native)),
    ):
        with pytest.raises((ValueError, IndexError), match=r"found|bytes, expected|out of range"):
            getattr(scores._native, name)(*arguments)
