"""Recognized text, lower-case words, as people write it: digits for spoken numbers, capitals, subtitles. Punctuation is
not recognized, so there is none."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from device_sdk.hypothesis import Word

MONTHS = frozenset(
    {"january", "february", "april", "june", "july", "august", "september", "october", "november", "december"}
)
DAYS = frozenset({"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"})
WORDS_TOO = frozenset({"march", "may"})
"""Months that are words of their own: capital only in a date."""
BEFORE_TIMES = frozenset({"at", "until", "till", "by", "around", "before", "after"})
AFTER_TIMES = frozenset({"", "today", "tomorrow", "tonight", "on", "in", "every", "please", *DAYS})
DIGIT_STRING = 3
"""Digits in a row that make one number, as in telephone numbers; two stay two."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of formatted text and the words ``start`` to ``stop`` (not included) that it stands for."""

    text: str
    start: int
    stop: int


def written_form(text: str) -> str:
    """The text with digits for numbers, a capital at the start, and capitals for I, weekdays and months. "sixteen
    ounce" -> "16 ounce", "twenty five" -> "25", "one two three" -> "123", "ten thirty p m" -> "10:30 pm", "five
    percent" -> "5%", "twenty first" -> "21st", "three point one four" -> "3.14", "nineteen oh five" -> "1905". What may
    be no number stays as it is: "this one", "a second", "first of all", "one tenth"."""
    return " ".join(span.text for span in spans(text.split()))


def spans(words: Sequence[str]) -> tuple[Span, ...]:
    """The formatted pieces of a text, in order; together they cover every word once."""
    found: list[Span] = []
    at = 0
    while at < len(words):
        text, taken = _number(words, at) or (words[at], 1)
        found.append(Span(text, at, at + taken))
        at += taken
    cased = [replace(span, text=_cased(found, index)) for index, span in enumerate(found)]
    if cased:
        cased[0] = replace(cased[0], text=cased[0].text[:1].upper() + cased[0].text[1:])
    return tuple(cased)


def _number(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """What is written for the number that begins at ``at``, and how many words it takes; None where there is none."""
    for reading in (_ordinal, _time, _digit_string, _year, _quantity):
        found = reading(words, at)
        if found is not None:
            return found
    return None


def _ordinal(words: Sequence[str], at: int) -> tuple[str, int] | None:
    found = ordinal(words[at:])
    if found is None:
        return None
    value, taken = found
    if taken == 1:
        before, after = _word(words, at - 1), _word(words, at + 1)
        month = _word(words, at + 2) if after == "of" else before
        dated = month in MONTHS | WORDS_TOO or (before == "the" and _word(words, at - 2) in DAYS)
        if not dated and (value < 10 or cardinal([before])):  # "the second", "one tenth"
            return None
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{ending}", taken


def _time(words: Sequence[str], at: int) -> tuple[str, int] | None:
    """Hours alone before am, pm and o'clock; hours and minutes before am and pm, or where a time is expected."""
    hour = cardinal(words[at:])
    if hour is None or hour[1] != 1 or not 1 <= hour[0] <= 12:
        return None
    half, taken = _half_of_day(words, at + 1)
    if half:
        return f"{hour[0]} {half}", 1 + taken
    if _word(words, at + 1) == "o'clock":
        return f"{hour[0]} o'clock", 2
    minutes = _minutes(words, at + 1)
    if minutes is None:
        return None
    end = at + 1 + minutes[1]
    half, taken = _half_of_day(words, end)
    expected = _word(words, at - 1) in BEFORE_TIMES or (
        _word(words, at - 1) == "for" and _word(words, end) in AFTER_TIMES
    )
    if not half and (not expected or _continues(words, end)):
        return None
    return f"{hour[0]}:{minutes[0]:02d}{half and ' '}{half}", end + taken - at


def _minutes(words: Sequence[str], at: int) -> tuple[int, int] | None:
    if _word(words, at) in ("oh", "o"):
        unit = DIGITS.get(_word(words, at + 1), 0)
        return (unit, 2) if unit else None
    found = below_hundred(words, at)
    return found if found is not None and 10 <= found[0] < 60 else None


def _half_of_day(words: Sequence[str], at: int) -> tuple[str, int]:
    for half in ("am", "pm"):
        if _word(words, at) == half:
            return half, 1
        if (_word(words, at), _word(words, at + 1)) == tuple(half):
            return half, 2
    return "", 0


def _digit_string(words: Sequence[str], at: int) -> tuple[str, int] | None:
    values: list[int] = []
    while (value := digit(_word(words, at + len(values)))) is not None:
        values.append(value)
    if values and _continues(words, at + len(values)):
        values.pop()  # it begins another number, "one two three hundred"
    if len(values) < DIGIT_STRING or sum(word in DIGITS for word in words[at : at + len(values)]) < 2:
        return None
    return "".join(map(str, values)), len(values)


def _year(words: Sequence[str], at: int) -> tuple[str, int] | None:
    century = cardinal(words[at : at + 1])
    if century is None or not 16 <= century[0] <= 20:
        return None
    if _word(words, at + 1) == "oh":
        unit = DIGITS.get(_word(words, at + 2), 0)
        return (f"{century[0]}0{unit}", 3) if unit else None
    rest = below_hundred(words, at + 1)
    if rest is None or rest[0] < 10 or _continues(words, at + 1 + rest[1]):
        return None
    return f"{century[0]}{rest[0]}", 1 + rest[1]


def _quantity(words: Sequence[str], at: int) -> tuple[str, int] | None:
    found = cardinal(words[at:])
    if found is None:
        return None
    value, taken = found
    text = str(value)
    if value >= 1_000_000 and value % 1_000_000 == 0 and words[at + taken - 1] in SCALES:
        scale = words[at + taken - 1]
        text = f"{value // SCALES[scale]} {scale}" if value % SCALES[scale] == 0 else text
    decimals = _decimals(words, at + taken) if value < 1_000_000 else ""
    if decimals:
        text, taken = f"{text}.{decimals}", taken + 1 + len(decimals)
        if _word(words, at + taken) in ("million", "billion"):
            text, taken = f"{text} {words[at + taken]}", taken + 1
    if _word(words, at + taken) == "percent":
        return f"{text}%", taken + 1
    if (_word(words, at + taken), _word(words, at + taken + 1)) == ("per", "cent"):
        return f"{text}%", taken + 2
    lone = _word(words, at - 1) not in DIGITS and _word(words, at + 1) not in DIGITS
    return None if taken == 1 and words[at] == "one" and lone else (text, taken)  # "this one"


def _decimals(words: Sequence[str], at: int) -> str:
    if _word(words, at) != "point":
        return ""
    end = at + 1
    while digit(_word(words, end)) is not None:
        end += 1
    return "".join(str(digit(word)) for word in words[at + 1 : end])


def _continues(words: Sequence[str], at: int) -> bool:
    return _word(words, at) == "hundred" or _word(words, at) in SCALES


def _cased(found: Sequence[Span], index: int) -> str:
    text = found[index].text
    if text == "i" or text.startswith("i'"):
        return f"I{text[1:]}"
    if text in MONTHS or text in DAYS:
        return text.capitalize()
    if text in WORDS_TOO:
        before, earlier = _text(found, index - 1), _text(found, index - 2)
        if _is_ordinal(_text(found, index + 1)) or _is_ordinal(before) or (before == "of" and _is_ordinal(earlier)):
            return text.capitalize()
    return text


def _is_ordinal(text: str) -> bool:
    return re.fullmatch(r"\d+(st|nd|rd|th)", text) is not None


def _text(found: Sequence[Span], index: int) -> str:
    return found[index].text if 0 <= index < len(found) else ""


def _word(words: Sequence[str], at: int) -> str:
    return words[at] if 0 <= at < len(words) else ""


Phrase = tuple[int, int]
"""A number's value, and how many words it took."""

_ONES = "zero one two three four five six seven eight nine"
_TEENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

DIGITS = {name: value for value, name in enumerate(_ONES.split())}
TEENS = {name: value for value, name in enumerate(_TEENS.split(), 10)}
TENS = {name: 10 * value for value, name in enumerate(_TENS.split(), 2)}
SCALES = {"thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
ORDINALS = {
    **{f"{name}th": name for name in (*DIGITS, *TEENS, "hundred", *SCALES)},
    **{f"{name[:-1]}ieth": name for name in TENS},
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    "twelfth": "twelve",
}
"""The last word of an ordinal -> that of its cardinal."""


def digit(word: str) -> int | None:
    """The value of a word in a string of digits, where "oh" is 0."""
    return 0 if word in ("oh", "o") else DIGITS.get(word)


def cardinal(words: Sequence[str]) -> Phrase | None:
    """The longest number that ``words`` begin with, below 10^12; None where there is none. "a hundred" is 100,
    "nineteen hundred" 1900. "and" may stand after a hundred or a scale only: "two hundred and five" is one number, "one
    and two" are two."""
    if _word(words, 0) == "zero":
        return 0, 1
    found = _hundreds_of_tens(words)
    if found is not None:
        return found
    total, at, ceiling = 0, 0, 1_000 * SCALES["billion"]
    while ceiling > 1:
        joined = 1 if at and _word(words, at) == "and" else 0
        group = below_hundred(words, at + joined) if joined else _below_thousand(words, at)
        if group is None:
            break
        value, taken = group
        scale = SCALES.get(_word(words, at + joined + taken), 1)
        if scale >= ceiling or (joined and scale > 1) or _word(words, at + joined + taken) == "hundred":
            break  # what follows is another number
        if scale == 1 and _word(words, at) == "a" and taken == 1:
            break
        total, at, ceiling = total + value * scale, at + joined + taken + (scale > 1), scale
    return (total, at) if at else None


def ordinal(words: Sequence[str]) -> Phrase | None:
    """The ordinal that ``words`` begin with: "twenty first" is 21 of 2 words. None where they begin with none."""
    for at, word in enumerate(words):
        if word in ORDINALS:
            found = cardinal([*words[:at], ORDINALS[word]])
            return found if found is not None and found[1] == at + 1 else None
        if word not in _PARTS:
            return None
    return None


def below_hundred(words: Sequence[str], at: int = 0) -> Phrase | None:
    """A number from 1 to 99 at ``at``."""
    word = _word(words, at)
    if word in TENS:
        unit = DIGITS.get(_word(words, at + 1), 0)
        return (TENS[word] + unit, 2) if unit else (TENS[word], 1)
    value = TEENS.get(word) or DIGITS.get(word)
    return (value, 1) if value else None


def _below_thousand(words: Sequence[str], at: int) -> Phrase | None:
    article = at == 0 and _word(words, 0) == "a" and _word(words, 1) in ("hundred", *SCALES)
    head = (1, 1) if article else below_hundred(words, at)
    if head is None or head[0] > 9 or _word(words, at + 1) != "hundred":
        return head
    return _with_rest(words, at, head[0] * 100, 2)


def _hundreds_of_tens(words: Sequence[str]) -> Phrase | None:
    head = below_hundred(words)
    if head is None or head[0] < 10 or head[0] % 10 == 0 or _word(words, head[1]) != "hundred":
        return None
    value, taken = _with_rest(words, 0, head[0] * 100, head[1] + 1)
    return (head[0] * 100, head[1] + 1) if _word(words, taken) in SCALES else (value, taken)


def _with_rest(words: Sequence[str], at: int, hundreds: int, taken: int) -> Phrase:
    """Hundreds, and what is below 100 after them."""
    joined = 1 if _word(words, at + taken) == "and" else 0
    rest = below_hundred(words, at + taken + joined)
    if rest is None or _word(words, at + taken + joined + rest[1]) == "hundred":
        return hundreds, taken
    return hundreds + rest[0], taken + joined + rest[1]


_PARTS = {"a", "and", "hundred", *DIGITS, *TEENS, *TENS, *SCALES}


LONGEST = 6.0  # s
WIDEST = 42  # characters, one line on a television
PAUSE = 0.8  # s
SHORTEST = 0.7  # s; word times say when a word was recognized, not how long to read it


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle. start, end: seconds."""

    text: str
    start: float
    end: float


def cues(words: Sequence[Word]) -> tuple[Cue, ...]:
    """Words as subtitles: a new one after a pause, or where a line would become too long to read."""
    groups: list[list[Word]] = []
    for word in words:
        last = groups[-1] if groups else []
        width = sum(len(other.text) + 1 for other in last) + len(word.text)
        if last and width <= WIDEST and word.start - last[-1].end < PAUSE and word.end - last[0].start <= LONGEST:
            last.append(word)
        else:
            groups.append([word])
    found: list[Cue] = []
    for index, group in enumerate(groups):
        latest = groups[index + 1][0].start if index + 1 < len(groups) else float("inf")
        end = max(group[-1].end, min(group[0].start + SHORTEST, latest))
        found.append(Cue(" ".join(word.text for word in group), group[0].start, end))
    return tuple(found)


def srt(subtitles: Iterable[Cue]) -> str:
    """SubRip."""
    return "\n".join(
        f"{number}\n{_clock(cue.start, ',')} --> {_clock(cue.end, ',')}\n{cue.text}\n"
        for number, cue in enumerate(subtitles, 1)
    )


def webvtt(subtitles: Iterable[Cue]) -> str:
    """WebVTT."""
    return "WEBVTT\n" + "".join(
        f"\n{_clock(cue.start, '.')} --> {_clock(cue.end, '.')}\n{cue.text}\n" for cue in subtitles
    )


def _clock(seconds: float, point: str) -> str:
    minutes, rest = divmod(round(seconds * 1_000), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1_000:02d}{point}{rest % 1_000:03d}"
