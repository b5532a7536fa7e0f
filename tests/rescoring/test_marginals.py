import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rescoring import marginals


def distributions(size: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.float64, size, elements=st.floats(1e-3, 1.0)).map(lambda values: values / values.sum())


def counts(size: int) -> st.SearchStrategy[Any]:
    return hnp.arrays(np.float64, size, elements=st.floats(0, 50))


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=6))
def test_kernel_limits(hypotheses: list[list[int]]) -> None:
    best = np.bincount(np.array(hypotheses[0], dtype=int), minlength=5)
    everything = np.bincount(np.array([word for words in hypotheses for word in words], dtype=int), minlength=5)
    np.testing.assert_allclose(marginals.weighted_counts(hypotheses, 1e-6, 5), best)
    np.testing.assert_allclose(marginals.weighted_counts(hypotheses, 1e6, 5), everything, rtol=1e-9)


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=6), st.floats(0.1, 10))
def test_pseudo_count_is_the_sum_of_weighted_lengths(hypotheses: list[list[int]], sigma: float) -> None:
    expected = sum(math.exp(-((rank) ** 2) / (2 * sigma**2)) * len(words) for rank, words in enumerate(hypotheses))
    assert marginals.pseudo_count(marginals.weighted_counts(hypotheses, sigma, 5)) == pytest.approx(expected)


@given(distributions(7), st.just(np.zeros(7)) | counts(7), st.just(0.0) | st.floats(1e-6, 100))
def test_personal_unigram_is_a_distribution_that_begins_as_the_background(u: Any, found: Any, smoothing: float) -> None:
    q = marginals.personal_unigram(found, u, smoothing)
    assert q.sum() == pytest.approx(1.0) and (q >= 0).all()
    np.testing.assert_allclose(q if not found.any() else u, u)
    np.testing.assert_allclose(marginals.interpolated_marginal(u, None, None, 0.5, 0.25), u)


def test_reliability_by_hand() -> None:
    """Twice as many words are heard as said, so each counts half; the second is often heard for the first."""
    heard, said = np.array([0.0, 8.0, 8.0, 0.0]), np.array([0.0, 6.0, 2.0, 0.0])
    np.testing.assert_allclose(marginals.reliability(heard, said, 1.0), [1.0, 7 / 5, 3 / 5, 1.0])
    np.testing.assert_allclose(marginals.reliability(heard, said, 1e9), 1.0, rtol=1e-6)


@given(counts(7), counts(7), st.floats(0.01, 10))
def test_reliability_is_relative_to_all_that_was_heard(heard: Any, said: Any, pseudo: float) -> None:
    """What a recognizer hears rightly, however often, has 1; counts of longer lists are worth the same."""
    found = marginals.reliability(heard, said, pseudo)
    assert (found > 0).all() and found.shape == (7,)
    np.testing.assert_allclose(marginals.reliability(3 * heard, said, pseudo), found, rtol=1e-9)
    np.testing.assert_allclose(marginals.reliability(said, said, pseudo), 1.0)


@given(distributions(7), distributions(7), distributions(7), st.floats(0, 1), st.floats(0, 1))
def test_interpolation_sums_to_one_or_is_refused(u: Any, q: Any, p: Any, alpha: float, beta: float) -> None:
    if alpha + beta > 1:
        with pytest.raises(ValueError, match="alpha"):
            marginals.interpolated_marginal(u, q, p, alpha, beta)
    else:
        g = marginals.interpolated_marginal(u, q, p, alpha, beta)
        assert g.sum() == pytest.approx(1.0)
        np.testing.assert_allclose(g, (1 - alpha - beta) * u + alpha * q + beta * p)


@given(distributions(6), distributions(6), distributions(6), st.just(0.0) | st.floats(0.01, 3))
def test_equation_1(u: Any, g: Any, p: Any, strength: float) -> None:
    factors = marginals.adaptation(g, u, strength)
    expected = (g / u) ** strength * p
    np.testing.assert_allclose((np.exp(factors) * p)[1:], expected[1:], rtol=1e-9)  # but for Z(h)
    assert factors[0] == 0.0, "the bucket is no word"
    expected = [strength * math.log((g[2] / u[2]) ** 2 * g[4] / u[4]), 0.0]
    added = marginals.PersonalMarginal(((1.0, g),), u, strength).scores([[2, 4, 2], [], [0]])
    assert added.tolist() == pytest.approx([*expected, 0.0])


shares = st.floats(0, 0.5)


@given(
    distributions(6), counts(6), counts(6), st.none() | distributions(6), shares, shares, st.sampled_from([0.0, 3.0])
)
def test_what_a_device_refreshes_is_the_same(
    u: Any, heard: Any, told: Any, q: Any, alpha: float, beta: float, smoothing: float
) -> None:
    """The words that the user confirmed take the background's place in what was heard, which takes it in them."""
    own = marginals.personal_unigram(told, marginals.personal_unigram(heard, u, smoothing), 7.0)
    expected = marginals.interpolated_marginal(u, q, own, alpha, beta)
    share = marginals.confirmed_share(told.sum(), 7.0)
    counts = [marginals.Counts(values, values.sum()) for values in (heard, told)]
    refreshed = marginals.refreshed_marginal(counts[0], u, q, alpha, beta, smoothing, counts[1], share)
    np.testing.assert_allclose(marginals.mixed(refreshed, np.arange(6)), expected)


def test_equations_1_to_5_by_hand() -> None:
    """A 2-best list over three words: "b b c", then "b c" (one mistake), sigma 1, one pseudo-word of the background."""
    u, q_global = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
    second = 0.6065306597126334  # eq. 3: exp(-1 / 2)
    counts = marginals.weighted_counts([[1, 1, 2], [1, 2]], 1.0, 3)
    np.testing.assert_allclose(counts, [0.0, 2.6065306597126334, 1.6065306597126334])
    assert marginals.pseudo_count(counts) == pytest.approx(4.213061319425267)  # eq. 5: 3 + 2 * exp(-1 / 2)
    q = marginals.personal_unigram(counts, u, 1.0)  # eq. 4
    np.testing.assert_allclose(q, [0.5 / 5.213061, 2.906531 / 5.213061, 1.806531 / 5.213061], rtol=1e-6)
    np.testing.assert_allclose(marginals.personal_unigram(counts, u, 0.0), counts / (3 + 2 * second))  # unsmoothed
    g = marginals.interpolated_marginal(u, q_global, q, 0.5, 0.25)  # eq. 2
    np.testing.assert_allclose(g, [0.248978, 0.464387, 0.286635], atol=1e-6)
    factors = marginals.adaptation(g, u, 0.5)  # eq. 1: 0.5 * log(g / u)
    np.testing.assert_allclose(factors, [0.0, 0.218468, 0.179946], atol=1e-6)
    assert marginals.PersonalMarginal(((1.0, g),), u, 0.5).scores([[1, 2, 0]])[0] == pytest.approx(0.398414, abs=2e-6)


def test_what_is_confirmed_by_hand() -> None:
    """Six words heard as b, two confirmed as c, which with two of evidence are half of what the user says."""
    u, heard = np.array([0.5, 0.3, 0.2]), np.array([0.0, 6.0, 0.0])
    share = marginals.confirmed_share(2.0, 2.0)
    confirmed = np.array([0.0, 0.0, 2.0])
    counts = [marginals.Counts(values, values.sum()) for values in (heard, confirmed)]
    mixture = marginals.refreshed_marginal(counts[0], u, None, 0.5, 0.5, 4.0, counts[1], share)
    g = marginals.mixed(mixture, np.arange(3))
    q_heard = (heard + 4 * u) / 10  # eq. 4
    own = 0.5 * np.array([0, 0, 1]) + 0.5 * q_heard
    assert share == 0.5
    np.testing.assert_allclose(g, 0.5 * u + 0.5 * own)
    np.testing.assert_allclose(g, [0.3, 0.33, 0.37])
    assert (marginals.confirmed_share(0, 50), marginals.confirmed_share(150, 50)) == (0.0, 0.75)


@pytest.mark.parametrize(
    ("marginal", "language_model", "share", "strength"),
    [
        (0.25, 0.2, 0.0, 0.25),  # of whom nothing is known
        (0.25, 0.2, 0.5, 2.625),  # half of the way to 5, where 0.2 * 5 = 1
        (0.25, 0.2, 1.0, 5.0),
        (8.0, 0.2, 0.5, 8.0),  # tuned to more: it stays
        (0.0, 0.2, 0.5, 0.0),  # switched off
        (0.25, 0.0, 0.5, 0.25),  # language models count nothing, and so does what is added to them
    ],
)
def test_strength_grows_with_what_is_known(marginal: float, language_model: float, share: float, strength: float):
    assert marginals.grown_strength(marginal, language_model, share) == pytest.approx(strength)


lists = st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5)


@given(lists, lists, st.floats(0.1, 10))
def test_a_union_s_unigram_is_the_mean_of_the_parts_each_by_its_pseudo_count(first, second, sigma):
    u, counts = np.full(5, 0.2), [marginals.weighted_counts(each, sigma, 5) for each in (first, second)]
    masses = [marginals.pseudo_count(each) for each in counts]
    if sum(masses) > 0:
        mean = sum(mass * marginals.personal_unigram(each, u, 0.0) for mass, each in zip(masses, counts, strict=True))
        np.testing.assert_allclose(marginals.personal_unigram(sum(counts), u, 0.0), mean / sum(masses), atol=1e-12)


GOOD = np.array([0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: marginals.gaussian_kernel(1, 0), "sigma"),
        (lambda: marginals.confirmed_share(1, 0), "evidence: found 1, 0"),
        (lambda: marginals.confirmed_share(-1, 1), "evidence"),
        (lambda: marginals.gaussian_kernel(0, 1), "rank"),
        (lambda: marginals.gaussian_kernel(1, math.nan), "sigma"),
        (lambda: marginals.weighted_counts([[2]], 1.0, 2), "word id 2"),
        (lambda: marginals.pseudo_count(np.array([-1.0])), "counts"),
        (lambda: marginals.personal_unigram(np.zeros(3), GOOD, 1), "counts"),
        (lambda: marginals.personal_unigram(np.zeros(2), GOOD, -1), "smoothing"),
        (lambda: marginals.reliability(np.zeros(2), np.zeros(3), 1.0), "heard"),
        (lambda: marginals.reliability(np.zeros(2), np.zeros(2), 0.0), "pseudo"),
        (lambda: marginals.interpolated_marginal(GOOD, None, None, -0.1, 0.2), "alpha"),
        (lambda: marginals.interpolated_marginal(GOOD, np.array([0.4, 0.4]), None, 0.1, 0.2), "global_: sums to"),
        (lambda: marginals.interpolated_marginal(GOOD, None, np.ones(1), 0.1, 0.2), "personal"),
        (lambda: marginals.adaptation(GOOD, GOOD, -1), "lambda"),
        (lambda: marginals.adaptation(GOOD, np.array([1.0, 0.0]), 1), "background: word 1"),
        (lambda: marginals.unigram(np.ones((2, 2))), "shape"),
        (lambda: marginals.unigram([math.nan, 1.0]), "not finite"),
    ],
)
def test_bad_values_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
