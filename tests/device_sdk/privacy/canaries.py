"""What must not be found where nothing may stay, in every form it could have, and a search for it in any bytes.

A canary is what an utterance was: its samples, its features, its text in the order spoken, words outside the public
list, its pieces, the scores of its hypotheses. Not a canary: a single word of the public list, whose counts a device
keeps and reports by design; weights and their changes, which gradients made."""

import base64
import binascii
import gzip
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

import numpy as np
from numpy.typing import NDArray

CHARSETS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
FLOATS = ("<f4", ">f4", "<f8", "<f2")
INTEGERS = ("<i8", "<i4", "<i2", "<u1", ">i4", ">i8")
SEPARATORS = (", ", ",", " ", "\n", ";")
WINDOW = 8
"""Values in a row that are looked for: by chance they are found nowhere."""
DEEPEST = 3
_HASH_BITS = 20


@dataclass(frozen=True)
class Canary:
    """name: what it is, for the report; forms: how it may stand in bytes, each at least 8 long."""

    name: str
    forms: Mapping[str, bytes]


def text(value: str, name: str | None = None) -> Canary:
    """A word or a text of at least 6 letters; small letters, capitals and first capitals count alike."""
    assert len(value) >= 6, value
    cases = {"": value, " in capitals": value.upper(), " as a title": value.title()}
    forms = {charset + case: each.encode(charset) for charset in CHARSETS for case, each in cases.items()}
    forms["url"] = quote(value).encode()
    forms["json"] = json.dumps(value)[1:-1].encode()
    return Canary(name or f"text {value!r}", {form: content for form, content in forms.items() if len(content) >= 6})


def numbers(name: str, values: NDArray[np.floating]) -> Canary:
    """``WINDOW`` values in a row: as floats of any size, as 16-bit sound, as a list of MessagePack, as decimals."""
    values = np.asarray(values, np.float64)
    assert values.shape == (WINDOW,) and len(set(values.tolist())) > 5
    forms = {kind: values.astype(kind).tobytes() for kind in FLOATS}
    if np.abs(values).max() <= 1.0 and np.abs(values).max() > 1e-3:
        for scale in (32767, 32768):
            forms[f"sound times {scale}"] = (values * scale).astype("<i2").tobytes()
            forms[f"rounded sound times {scale}"] = np.round(values * scale).astype("<i2").tobytes()
    forms["msgpack float32"] = b"".join(b"\xca" + struct.pack(">f", value) for value in values)
    forms["msgpack float64"] = b"".join(b"\xcb" + struct.pack(">d", value) for value in values)
    for separator in SEPARATORS:
        for kind in (np.float32, np.float64):
            written = separator.join(str(value) for value in values.astype(kind))
            forms[f"decimals {kind.__name__} {separator!r}"] = written.encode()
        forms[f"json {separator!r}"] = separator.join(repr(float(np.float32(value))) for value in values).encode()
    return Canary(name, forms)


def tokens(name: str, values: Sequence[int]) -> Canary:
    """A sequence of piece ids: packed as integers of any size, as varints, as MessagePack, as decimals."""
    array = np.asarray(values)
    assert array.size >= 4 and array.min() >= 0 and array.max() < 1 << 15
    kinds = [kind for kind in INTEGERS if array.max() < 256 or kind != "<u1"]
    forms = {kind: array.astype(kind).tobytes() for kind in kinds}
    forms["varints"] = b"".join(bytes([v]) if v < 128 else bytes([v & 127 | 128, v >> 7]) for v in values)
    forms["msgpack"] = b"".join(_msgpack(value) for value in values)
    for separator in SEPARATORS:
        forms[f"decimals {separator!r}"] = separator.join(map(str, values)).encode()
    return Canary(name, {form: content for form, content in forms.items() if len(content) >= 8})


class Needles:
    """Every form of many canaries, found in one pass: a table of hashed beginnings rules out nearly every place."""

    def __init__(self, canaries: Sequence[Canary]) -> None:
        self._by_start: dict[int, list[tuple[bytes, str]]] = {}
        self._table = np.zeros(1 << _HASH_BITS, bool)
        for canary in canaries:
            for form, content in canary.forms.items():
                start = int.from_bytes(content[:4], "little")
                self._by_start.setdefault(start, []).append((content, f"{canary.name} as {form}"))
        self._table[_hashed(np.array(list(self._by_start), np.uint32))] = True

    def found(self, content: bytes) -> set[str]:
        """What of it stands in ``content`` or in anything packed in it: "canary as form (in layer)"."""
        return {f"{what} (in {kind})" if kind else what for kind, part in layers(content) for what in self._plain(part)}

    def _plain(self, content: bytes) -> set[str]:
        hits: set[str] = set()
        for shift in range(4):
            count = (len(content) - shift) // 4
            if count <= 0:
                continue
            words = np.frombuffer(content, "<u4", count, shift)
            for place in np.flatnonzero(self._table[_hashed(words)]).tolist():
                for needle, what in self._by_start.get(int(words[place]), ()):
                    if content.startswith(needle, 4 * place + shift):
                        hits.add(what)
        return hits


def layers(content: bytes, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """The bytes themselves, and whatever is unpacked from them: gzip, zlib, base64, hexadecimal, JSON and URL escapes.
    Packed things within packed things too, ``DEEPEST`` deep. (layer, content), the layer of the bytes themselves ""."""
    yield "", content
    if depth == DEEPEST:
        return
    for name, unpack in _PACKINGS.items():
        for inner in unpack(content):
            for deeper, found in layers(inner, depth + 1):
                yield f"{name} {deeper}".strip(), found


def _inflated(content: bytes) -> Iterator[bytes]:
    places = [(each.start(), 31) for each in re.finditer(rb"\x1f\x8b\x08", content)]
    places += [(each.start(), 15) for each in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", content)]
    for member in re.finditer(rb"PK\x03\x04.{22}(..)(..)", content, re.DOTALL):  # of a zip, behind its name and extras
        places.append((member.end() + sum(int.from_bytes(size, "little") for size in member.groups()), -15))
    for start, bits in places:
        try:
            found = zlib.decompressobj(bits).decompress(memoryview(content)[start:], 1 << 26)
        except zlib.error:
            continue
        if len(found) >= 8:
            yield found


def _base64(content: bytes) -> Iterator[bytes]:
    for match in re.finditer(rb"[A-Za-z0-9+/_-]{10,}", content):
        run = match.group().replace(b"-", b"+").replace(b"_", b"/")
        for skip in range(4):
            whole = run[skip:]
            whole = whole[: len(whole) - (len(whole) % 4 == 1)]
            found = base64.b64decode(whole + b"=" * (-len(whole) % 4))
            if len(found) >= 8:
                yield found


def _hexadecimal(content: bytes) -> Iterator[bytes]:
    for match in re.finditer(rb"[0-9A-Fa-f](?:[ :]?[0-9A-Fa-f]){15,}", content):
        run = re.sub(rb"[ :]", b"", match.group())
        for skip in (0, 1):
            whole = run[skip:]
            yield binascii.unhexlify(whole[: len(whole) // 2 * 2])


def _unescaped(content: bytes) -> Iterator[bytes]:
    for match in re.finditer(rb"[\x20-\x7e]{8,}", content):
        run = match.group()
        if b"\\" in run:
            yield _ESCAPE.sub(_unescape, run)
        if re.search(rb"%[0-9A-Fa-f]{2}", run):
            yield unquote_to_bytes(run)


_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|([abtnvfr0\\'\"/]))")
_SHORT = dict(zip(b"abtnvfr0", b"\a\b\t\n\v\f\r\0", strict=True))


def _unescape(match: re.Match[bytes]) -> bytes:
    if match[1]:
        return bytes([int(match[1], 16)])
    if match[2]:
        return chr(int(match[2], 16)).encode("utf-8", "surrogatepass")
    return bytes([_SHORT.get(match[3][0], match[3][0])])


_PACKINGS: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    "inflated": _inflated,
    "base64": _base64,
    "hexadecimal": _hexadecimal,
    "unescaped": _unescaped,
}


def _zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("member", gzip.compress(content))
    return file.getvalue()


ENCODINGS: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "base64": base64.b64encode,
    "base64 of a longer thing": lambda content: base64.b64encode(b"ab" + content + b"cde"),
    "url-safe base64": base64.urlsafe_b64encode,
    "hexadecimal": binascii.hexlify,
    "hexadecimal capitals": lambda content: binascii.hexlify(content).upper(),
    "zlib": zlib.compress,
    "zlib, hardly": lambda content: zlib.compress(content, 1),
    "gzip": gzip.compress,
    "zip": _zipped,
    "base64 of gzip": lambda content: base64.b64encode(gzip.compress(content)),
    "python repr": lambda content: repr(content).encode(),
    "percent": lambda content: quote(content).encode(),
}
"""Ways to pack bytes that the search sees through."""


def _msgpack(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    return b"\xcc" + bytes([value]) if value < 256 else b"\xcd" + value.to_bytes(2, "big")


def _hashed(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (values * np.uint32(2654435761)) >> np.uint32(32 - _HASH_BITS)
