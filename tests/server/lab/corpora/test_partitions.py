import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from server.lab.corpora.partitions import Item, cross_silo, local_tests, speaker_silos, speakers_together, warm_up_split

CHAPTERS = st.sampled_from(["", "9", "10", "book_2/ch_11", "book_2/ch_2"])
ROWS = st.lists(st.tuples(st.integers(0, 12), st.floats(0.3, 30.0), CHAPTERS), min_size=1, max_size=80)
CORPORA = ROWS.map(lambda rows: [Item(f"u{n}", f"s{row[0]:02d}", *row[1:]) for n, row in enumerate(rows)])

PARTITIONERS = {
    "speaker silos": lambda items, seed: speaker_silos(items),
    "cross-silo": lambda items, seed: cross_silo(items, min(10, len({i.speaker for i in items})), seed),
    "two speakers a device": speakers_together,
}


@pytest.mark.parametrize("name", PARTITIONERS)
@given(items=CORPORA, seed=st.integers(0, 3))
def test_every_utterance_has_one_client_and_a_seed_repeats_itself(name: str, items: list[Item], seed: int) -> None:
    partition = PARTITIONERS[name](items, seed)
    assert sorted([item for own in partition.values() for item in own]) == sorted(item.id for item in items)
    assert all(partition.values()), "no client is empty"
    assert PARTITIONERS[name](items, seed) == partition


@pytest.mark.parametrize(("name", "most"), [("speaker silos", 1), ("two speakers a device", 2)])
@given(items=CORPORA, seed=st.integers(0, 3))
def test_how_many_speakers_a_device_has(name: str, most: int, items: list[Item], seed: int) -> None:
    speaker = {item.id: item.speaker for item in items}
    counts = [len({speaker[item] for item in own}) for own in PARTITIONERS[name](items, seed).values()]
    assert max(counts) <= most
    assert sum(count < most for count in counts) <= 1, "only the last device may have fewer"
    assert sum(counts) == len(set(speaker.values())), "nobody is on two devices"


def test_chapters_are_in_the_order_of_their_numbers() -> None:
    items = [Item(name, name[0], 1.0, name.split("-")[1]) for name in ("a-10-2", "a-9-11", "a-9-2", "b-1-1", "a-10-1")]
    assert speaker_silos(items) == {"a": ("a-9-2", "a-9-11", "a-10-1", "a-10-2"), "b": ("b-1-1",)}


@given(st.lists(st.floats(60.0, 1500.0), min_size=60, max_size=120), st.integers(0, 3))
def test_silos_have_whole_speakers_and_about_as_much_speech(lengths: list[float], seed: int) -> None:
    items = [Item(f"{n}-{half}", f"s{n}", seconds / 2, "") for n, seconds in enumerate(lengths) for half in (0, 1)]
    partition = cross_silo(items, 10, seed)
    seconds = {item.id: item.seconds for item in items}
    speaker = {item.id: item.speaker for item in items}
    totals = [sum(seconds[item] for item in own) for own in partition.values()]
    owners = [{speaker[item] for item in own} for own in partition.values()]
    assert len(partition) == 10 and sum(map(len, owners)) == len(lengths)
    assert max(totals) - min(totals) <= max(lengths), "within one speaker of each other"


def test_silos_are_random_and_no_more_than_speakers() -> None:
    items = [Item(f"u{n}", f"s{n:02d}", 5.0) for n in range(40)]
    assert cross_silo(items, 4, 0) != cross_silo(items, 4, 1)
    assert speakers_together(items, 0) != speakers_together(items, 1)
    with pytest.raises(ConfigurationError, match="clients: found 2 for 1 speakers"):
        cross_silo(items[:1], 2)


@given(CORPORA)
def test_the_warm_up_has_the_busiest_speakers(items: list[Item]) -> None:
    first, rest = warm_up_split(items)
    assert sorted(item.id for item in (*first, *rest)) == sorted(item.id for item in items)
    count = {name: sum(item.speaker == name for item in items) for name in {item.speaker for item in items}}
    speakers = {item.speaker for item in first}
    assert speakers.isdisjoint(item.speaker for item in rest) and len(first) >= len(items) / 2
    assert min(count[name] for name in speakers) >= max((count[item.speaker] for item in rest), default=0)
    assert len(first) - min(count[name] for name in speakers) < len(items) / 2, "no speaker more than is needed"


@given(CORPORA, st.integers(0, 3))
def test_clients_keep_a_tenth_and_two_at_the_least_for_testing(items: list[Item], seed: int) -> None:
    partition = speaker_silos(items)
    train, test = local_tests(partition, 2, seed)
    assert train.keys() == partition.keys()
    for client, own in partition.items():
        kept = test.get(client, ())
        assert sorted((*train[client], *kept)) == sorted(own)
        assert len(kept) == (max(2, round(0.1 * len(own))) if len(own) > 2 else 0)
        assert [item for item in own if item in train[client]] == list(train[client]), "order is kept"
