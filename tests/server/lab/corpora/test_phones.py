import pytest

from server.lab.corpora.phones import pronounce


def names(text: str) -> list[str]:
    found = pronounce(text.split())
    return [found.symbols[phone] for phone in found.encode(text)]


@pytest.mark.parametrize(
    ("one", "other"), [("sea", "see"), ("knight", "night"), ("their", "there"), ("whether", "weather")]
)
def test_what_sounds_alike_is_written_alike(one: str, other: str) -> None:
    assert names(one) == names(other)


def test_words_are_phones_in_order() -> None:
    assert names("cat sat") == ["k", "a", "t", "s", "a", "t"]
    assert [len(names(word)) for word in ("through", "cappuccino", "o'clock")] == [3, 8, 5]


def test_phones_have_numbers_from_one_whatever_the_order_of_words() -> None:
    words = ["timer", "lights", "what's"]
    found = pronounce(words)
    assert found == pronounce(reversed(words)) and found.symbols[0] == ""
    assert {phone for phones in found.words.values() for phone in phones} == set(range(1, len(found.symbols)))
    with pytest.raises(KeyError):
        found.encode("unheard")
