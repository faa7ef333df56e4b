"""The address of a database with values from the environment: ``postgresql://load:${PASSWORD}@db/shop``.

A value stays one value, whatever it holds: a password with an '@' must not become half a password and another host, for
hosts are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from semistream.errors import ArgumentError

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_URL = re.compile(r"(\w+://)([^@]*)(@.*)", re.DOTALL)  # who comes before the '@' of the template
_VALUE = re.compile(r"(=\s*)(')?\$\{(\w+)\}(?(2)')|\$\{(\w+)\}")


def filled(template: str, environment: Mapping[str, str]) -> str:
    """The address, with each ``${NAME}`` taken from the environment.

    >>> filled("postgresql://load:${WORD}@db/shop", {"WORD": "a@b"})
    'postgresql://load:a%40b@db/shop'
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(found.lastindex or 0)
        if name not in environment:
            raise ArgumentError(f"the environment has no variable {name}, which postgres = … names")
        return environment[name]

    if url := _URL.fullmatch(template):
        scheme, who, rest = url.groups()
        return scheme + _VARIABLE.sub(lambda found: quote(value(found), safe=""), who) + _VARIABLE.sub(value, rest)
    if "://" in template:
        return _VARIABLE.sub(value, template)

    def quoted(found: re.Match[str]) -> str:
        return value(found) if found.group(1) is None else f"{found.group(1)}'{_escaped(value(found))}'"

    return _VALUE.sub(quoted, template)  # in one pass: a value that looks like a variable is none


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
