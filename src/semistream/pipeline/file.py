"""A pipeline from a TOML file. What is wrong is named with its line and the choices, all before Spark starts.

Paths are relative to the file. In a PostgreSQL address `${NAME}` is taken from the environment: passwords stay there.
"""

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from semistream.errors import PipelineFileError, SemistreamError, StepError, is_address, local_path, meant
from semistream.pipeline.pipeline import Pipeline
from semistream.pipeline.sources import Source, source
from semistream.pipeline.steps import STEPS
from semistream.pipeline.steps.contract import Step
from semistream.shedding import Shed
from semistream.warehouse import WAREHOUSES, Warehouse

_PLAIN = ("memory", "required", "max_bad_rate", "trigger", "new_columns")  # as `Pipeline` takes them
_TOP = ("name", "state", *_PLAIN, "source", "step", "sink", "dimensions", "shed")
_SHED = ("strategy", "max_rows_per_second", "seed", "weight_column")
_NAME = r"(?:\"[^\"]+\"|'[^']+'|[\w-]+)"
_DOTTED = rf"({_NAME}(?:\s*\.\s*{_NAME})*)"
_HEADER = re.compile(rf"\s*(\[\[?)\s*{_DOTTED}\s*\]")
_KEY = re.compile(rf"\s*{_DOTTED}\s*=")


class _Kind(NamedTuple):
    """What a setting must be, in TOML."""

    said: str
    types: tuple[type, ...]
    inside: type = str  # what lists and tables hold

    def fits(self, value: object) -> bool:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return type(value) in self.types and all(isinstance(one, self.inside) for one in inside)


_TEXT = _Kind("a text", (str,))
_WANTED = {  # of settings that nobody checks later
    **dict.fromkeys(("name", "state", "lookup", "assign_keys", "into", "path", "table", *WAREHOUSES), _TEXT),
    **dict.fromkeys(("source", "sink"), _Kind("a table", (dict,), object)),
    **dict.fromkeys(("memory", "hold_bytes"), _Kind('a number of bytes or a text such as "64MB"', (int, str))),
    **dict.fromkeys(("max_bad_rate", "min_match_rate"), _Kind("a number", (int, float))),
    **dict.fromkeys(("required", "columns"), _Kind('a list of texts, such as ["sale_id"]', (list,))),
    **dict.fromkeys(("deduplicate", "order_by"), _Kind("a text or a list of texts", (str, list))),
    "step": _Kind("a list of tables, each under [[step]]", (list,), dict),
    "dimensions": _Kind("a table of texts", (dict,)),
    "shed": _Kind('a table, such as { strategy = "topw" }', (dict,), object),
    "rename": _Kind('a table of texts, such as { price = "list_price" }', (dict,)),
    "compute": _Kind('a table, such as { revenue = "quantity * price" }', (dict,), object),
    "select": _Kind('a list of texts, such as ["sale_id"], or a table such as { amount = "revenue" }', (list, dict)),
    "infer_members": _Kind("true or false", (bool,)),
}


class _Lines:
    """Where each setting stands: (table, number of the table, key) → line."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.found: dict[tuple[str, int, str], int] = {}
        counts: dict[str, int] = {}
        header: list[str] = []
        for line, content in enumerate(text.splitlines(), 1):
            if opened := _HEADER.match(content):
                header = _parts(opened.group(2))
                if opened.group(1) == "[[":
                    counts[header[0]] = counts.get(header[0], -1) + 1
                keys = []
            elif setting := _KEY.match(content):
                keys = _parts(setting.group(1))
            else:
                continue
            table, *words = header + keys
            self.found.setdefault(("", 0, table), line)
            if header or len(keys) > 1:
                for word in ("", *words):
                    self.found.setdefault((table, counts.get(table, 0), word), line)

    def error(self, table: str, number: int, key: str, message: str) -> PipelineFileError:
        places = ((table, number, key), (table, number, ""), ("", 0, table))
        line = next((self.found[place] for place in places if place in self.found), None)
        where = f"{self.path}, line {line}" if line else str(self.path)
        return PipelineFileError(f"{where}: {message}")


def _parts(name: str) -> list[str]:
    return [part[1:-1] if part[0] in "\"'" else part for part in re.findall(_NAME, name)]


def load(path: str | os.PathLike[str]) -> Pipeline:
    """Read a file, check it completely, and return the pipeline."""
    place = local_path("path", path)
    try:
        text = place.read_text(encoding="utf-8")
        body = tomllib.loads(text)
    except FileNotFoundError:
        raise PipelineFileError(f"there is no file {place}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PipelineFileError(f"{place}: {error}") from error
    lines = _Lines(place, text)
    _known(body, _TOP, lines, "", 0, "the file")
    for word in ("source", "sink", "state"):
        if word not in body:
            raise PipelineFileError(f"{place} has no {word!r}; it needs source, sink and state")
    steps = [_step(step, number, lines) for number, step in enumerate(body.get("step", []))]
    state = _beside(body["state"], lines, "state")
    table, sink = _sink(body["sink"], lines, state)
    settings: dict[str, Any] = {word: body[word] for word in ("name", *_PLAIN) if word in body}
    stores = body.get("dimensions", {}).items()
    settings["dimensions"] = {name: _beside(store, lines, "dimensions", name) for name, store in stores}
    if "shed" in body:
        settings["shed"] = _shed(body["shed"], lines)
    read = _source(body["source"], lines)
    try:
        made = Pipeline(read, steps, sink, table=table, state=state, **settings)
        made.check()
    except StepError as error:
        word = error.word if error.word in body["step"][error.number] else next(iter(body["step"][error.number]))
        raise lines.error("step", error.number, word, error.message) from error
    except (SemistreamError, TypeError) as error:
        raise lines.error("", 0, _named(error, _TOP), str(error)) from error
    return made


def _known(body: dict[str, Any], words: Collection[str], lines: _Lines, table: str, number: int, where: str) -> None:
    for word, value in body.items():
        if word not in words:
            said = f"{where} has no setting {word!r}; it has {', '.join(words)}{meant(word, words)}"
            raise lines.error(table, number, word, said)
        _check_kind(word, value, lines, table, number)


def _check_kind(word: str, value: object, lines: _Lines, table: str, number: int) -> None:
    wanted = _WANTED.get(word)
    if wanted is not None and not wanted.fits(value):
        raise lines.error(table, number, word, f"{word} = {value!r} must be {wanted.said}")


def _named(error: Exception, words: Collection[str]) -> str:
    """The setting that a message is about: the first that it names."""
    return next((word for word in re.findall(r"(\w+)=", str(error)) if word in words), "")


def _like(body: dict[str, Any], words: Collection[str]) -> str:
    """Which of the words a setting of the body resembles."""
    return next((like for word in body if (like := meant(word, words))), "")


def _beside(value: object, lines: _Lines, name: str, key: str = "") -> Path:
    """A path as the file gives it, of a setting or under a key in a table: relative to the file, never an address."""
    try:
        return lines.path.parent / local_path(name, value)
    except SemistreamError as error:
        raise lines.error(name if key else "", 0, key or name, str(error)) from error


def _source(body: dict[str, Any], lines: _Lines) -> Source:
    given = dict(body)
    if "format" not in given:
        raise lines.error("source", 0, "", 'the source needs a format, such as format = "json"')
    if "path" in given:
        _check_kind("path", given["path"], lines, "source", 0)
        if not is_address(given["path"]):  # Spark may be able to read what we cannot
            given["path"] = lines.path.parent / given["path"]
    try:
        return source(given.pop("format"), given.pop("path", None), schema=given.pop("schema", None), **given)
    except SemistreamError as error:
        raise lines.error("source", 0, _named(error, body) or "schema", str(error)) from error


def _step(body: dict[str, Any], number: int, lines: _Lines) -> Step:
    kinds = [word for word in body if word in STEPS]
    if len(kinds) != 1:
        said = f"is {' and '.join(kinds)}" if kinds else f"has {', '.join(body)}{_like(body, STEPS)}"
        raise lines.error("step", number, "", f"a step is one of {', '.join(STEPS)}; this one {said}")
    kind, rest = kinds[0], dict(body)
    value, form = rest.pop(kind), STEPS[kind]
    _check_kind(kind, value, lines, "step", number)
    _known(rest, form.settings, lines, "step", number, f"a {kind}")
    try:
        return form.read(value, lines.path.parent, **rest)
    except TypeError as error:
        raise lines.error("step", number, kind, f"{kind}: {str(error).replace(kind + '() ', '')}") from error
    except SemistreamError as error:
        raise lines.error("step", number, _named(error, form.settings) or kind, str(error)) from error


def _shed(body: dict[str, Any], lines: _Lines) -> Shed:
    _known(body, _SHED, lines, "shed", 0, "shed")
    if "strategy" not in body:
        raise lines.error("shed", 0, "", 'shed needs a strategy, such as strategy = "topw"')
    try:
        return Shed(**body)
    except SemistreamError as error:
        raise lines.error("shed", 0, _named(error, _SHED) or "strategy", str(error)) from error


def _sink(body: dict[str, Any], lines: _Lines, state: Path) -> tuple[str, Warehouse]:
    kinds = [word for word in body if word in WAREHOUSES]
    if len(kinds) != 1:
        said = f'the sink is one of {", ".join(WAREHOUSES)}, for example delta = "warehouse"{_like(body, WAREHOUSES)}'
        raise lines.error("sink", 0, "", said)
    kind, form = kinds[0], WAREHOUSES[kinds[0]]
    _known(body, (kind, "table", *form.settings), lines, "sink", 0, f"a {kind} sink")
    if "table" not in body:
        raise lines.error("sink", 0, kind, "the sink needs a table, the name of the table of facts")
    settings = {word: body[word] for word in form.settings if word in body}
    try:
        return body["table"], form.open(body[kind], lines.path.parent, state / "staging", **settings)
    except SemistreamError as error:
        raise lines.error("sink", 0, _named(error, form.settings) or kind, str(error)) from error
