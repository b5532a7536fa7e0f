"""Docstrings as the site shows them. Their roles, ``:class:`Device```, become links where the site has the name; a name
that does not exist is a warning. Their sentences ``name: what it is.`` become a list, where ``name`` is a parameter, a
field or an error. Fields of messages become parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import griffe

log = griffe.get_logger("docstrings")
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(?:[^`<]*<(?P<path>[\w.]+)>|~?(?P<name>[\w.]+))`")
TERM = re.compile(
    r"(?:^|(?<=[.:;)] ))(?:(?P<names>`*\w+(?:, \w+)*`*)(?P<domain> (?:&lt;|>)=? [\w.]+)?: |"
    r"(?P<raises>Raises )(?=[:A-Z]))"
)
PLAIN_LESS = re.compile(r"(`+[^`]*`+|^ {4}[^\n]*)|<", re.MULTILINE)
PACKAGES = ("rescoring", "device_sdk", "export", "server")


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        for each in members(pkg):
            if isinstance(each, griffe.Class) and _is_message(each):
                _declare(each)
        for each in members(pkg):
            if each.docstring is not None:
                each.docstring.value = shown(each, each.docstring.value)


def members(within: griffe.Object) -> Iterator[griffe.Object]:
    """It and everything defined in it."""
    yield within
    for each in list(within.members.values()):
        if isinstance(each, griffe.Object):
            yield from members(each)


def shown(of: griffe.Object, text: str) -> str:
    """A docstring as Markdown."""
    text = PLAIN_LESS.sub(lambda found: found[1] or "&lt;", text)  # </s> is no HTML
    return ROLE.sub(lambda role: _linked(of, role), _as_lists(text, set(_terms(of))))


def role_target(of: griffe.Object, role: re.Match[str]) -> str:
    """The path that a role of this object's docstring names. NameResolutionError: none in its scope."""
    name = role["path"] or role["name"]
    first, _, rest = name.partition(".")
    if first in PACKAGES:
        return name
    owner = of if isinstance(of, griffe.Class) else of.parent
    if isinstance(owner, griffe.Class) and first in owner.inherited_members:
        found = owner.inherited_members[first].target_path
    else:
        found = of.members[first].path if first in of.members else of.resolve(first)
    return f"{found}.{rest}" if rest else found


def _linked(of: griffe.Object, role: re.Match[str]) -> str:
    label = re.split(r"\s*<", role[0].partition("`")[2].rstrip("`"))[0]
    if label.startswith("~"):
        label = label.rpartition(".")[2]
    try:
        path = role_target(of, role)
    except griffe.NameResolutionError:
        log.warning("%s: %s: no such name in its scope", of.path, role[0])
        return f"`{label}`"
    return f'<autoref identifier="{escape(path)}" optional><code>{escape(label)}</code></autoref>'


def _terms(of: griffe.Object) -> Iterator[str]:
    """What a docstring's sentences may be about: parameters and fields."""
    if isinstance(of, griffe.Function):
        yield from (each.name for each in of.parameters)
    if isinstance(of, griffe.Class):
        yield from (name for name, each in of.members.items() if each.is_attribute)
        yield from (each.name for each in of.parameters)


def _as_lists(text: str, terms: set[str]) -> str:
    return "\n\n".join(_as_list(each, terms) for each in text.split("\n\n"))


def _as_list(paragraph: str, terms: set[str]) -> str:
    if paragraph.startswith((" ", "|", "- ", "*")):
        return paragraph  # a block of its own: code, a table, a list
    line = " ".join(paragraph.split())
    found = [each for each in TERM.finditer(line) if each["raises"] or _known(each["names"], terms)]
    if all(each["raises"] for each in found):
        return paragraph
    ends = [*(each.start() for each in found[1:]), len(line)]
    items = [f"- {_title(each)} {_sentence(line[each.end() : end])}" for each, end in zip(found, ends, strict=True)]
    intro = line[: found[0].start()].strip()
    return "\n".join([*([intro, ""] if intro else []), *items])


def _title(term: re.Match[str]) -> str:
    return "**Raises**" if term["raises"] else f"**{term['names'].strip('`')}**{term['domain'] or ''}:"


def _known(names: str, terms: set[str]) -> bool:
    every = names.strip("`").split(", ")
    return all(name in terms for name in every) or (len(every) == 1 and every[0].endswith("Error"))


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:-1] + "." if text.endswith((";", ":")) else text


def _is_message(of: griffe.Class) -> bool:
    bases = {str(base).rpartition(".")[2] for base in of.bases}
    return bool(bases & {"Message", "_Plan", "Request", "Answer"})


def _declare(message: griffe.Class) -> None:
    """Its fields as parameters of its constructor, which pydantic makes."""
    fields = [
        griffe.Parameter(name, annotation=each.annotation, kind=griffe.ParameterKind.keyword_only, default=each.value)
        for name, each in message.members.items()
        if isinstance(each, griffe.Attribute) and each.annotation is not None and "property" not in each.labels
    ]
    if fields and "__init__" not in message.members:
        made = griffe.Function("__init__", parameters=griffe.Parameters(*fields))
        message.set_member("__init__", made)
