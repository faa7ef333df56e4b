"""The manifests of a Parquet warehouse: which files its tables consist of, and how far each stream has come.

``manifests/000000000007.json`` is the seventh commit: what it changed, with a checksum. It is written under another
name, synced, and linked into place; the link fails when that number is taken, so of two writers one is refused. What a
warehouse holds is the sum of its manifests; every fiftieth repeats the whole, so that a reader needs few.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semistream.stores.paged.manifest import checksum, publish_new
from semistream.warehouse import SinkError
from semistream.warehouse.contract import StagedFile

FORMAT = 1
_WHOLE_EVERY = 50
_NAME = re.compile(r"(\d{12})\.json")


@dataclass(frozen=True)
class Content:
    """A table as of one commit: its schema (encoded) and its files, relative to its directory."""

    schema: str
    files: tuple[StagedFile, ...] = ()


@dataclass(frozen=True)
class State:
    """All tables and marks as of one commit; 0 is before the first."""

    version: int
    marks: Mapping[str, int]
    tables: Mapping[str, Content]

    def changed(self, marks: Mapping[str, int], tables: Mapping[str, Content]) -> State:
        """The state after a commit."""
        return replace(self, version=self.version + 1, marks={**self.marks, **marks}, tables={**self.tables, **tables})


EMPTY = State(0, {}, {})


def load(root: Path, known: State = EMPTY) -> State:
    """The newest state; ``known`` is one that was loaded before, and saves reading what led to it."""
    directory = root / "manifests"
    found = [_NAME.fullmatch(path.name) for path in directory.iterdir()] if directory.is_dir() else []
    newest = max((int(match.group(1)) for match in found if match), default=0)
    if newest < known.version:
        raise SinkError(f"{directory} was set back: version {known.version} was there and {newest} is the newest now")
    documents: list[dict[str, Any]] = []
    for version in range(newest, known.version, -1):
        documents.append(_read(directory / f"{version:012d}.json", version))
        if documents[-1]["whole"]:
            known = replace(EMPTY, version=version - 1)
            break
    for body in reversed(documents):
        known = _apply(known, body)
    return known


def publish(root: Path, before: State, after: State, about: Mapping[str, Any]) -> None:
    """Make ``after`` the newest state; a FileExistsError when another writer came first."""
    whole = after.version % _WHOLE_EVERY == 0
    since = EMPTY if whole else before
    tables = {name: _difference(since.tables.get(name), content) for name, content in after.tables.items()}
    body = {
        "version": after.version,
        "created": time.time(),
        "about": dict(about),
        "whole": whole,
        "marks": {mark: value for mark, value in after.marks.items() if since.marks.get(mark) != value},
        "tables": {name: change for name, change in tables.items() if change is not None},
    }
    (root / "manifests").mkdir(parents=True, exist_ok=True)
    text = json.dumps({"semistream": FORMAT, "crc32": checksum(body), "commit": body}, indent=1)
    publish_new(root / "manifests" / f"{after.version:012d}.json", text)


def _difference(before: Content | None, after: Content) -> dict[str, Any] | None:
    if before == after:
        return None
    old = set() if before is None else set(before.files)
    new = set(after.files)
    return {
        "schema": after.schema,
        "added": [[file.path, file.rows, file.bytes] for file in after.files if file not in old],
        "removed": sorted(file.path for file in old - new),
    }


def _apply(state: State, body: dict[str, Any]) -> State:
    tables = {}
    for name, change in body["tables"].items():
        gone = set(change["removed"])
        stay = tuple(file for file in state.tables.get(name, Content("")).files if file.path not in gone)
        come = tuple(StagedFile(str(path), int(rows), int(size)) for path, rows, size in change["added"])
        tables[name] = Content(change["schema"], stay + come)
    return state.changed({mark: int(value) for mark, value in body["marks"].items()}, tables)


def _read(path: Path, version: int) -> dict[str, Any]:
    """One manifest, its form checked by what is read from it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["semistream"] != FORMAT:
            raise ValueError(f"it has format {document['semistream']}, and this semistream reads {FORMAT}")
        body: dict[str, Any] = document["commit"]
        if document["crc32"] != checksum(body):
            raise ValueError("its checksum does not fit")
        if body["version"] != version:
            raise ValueError(f"it describes version {body['version']}: it was renamed")
        _apply(EMPTY, body)
        bool(body["whole"])
        return body
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SinkError(f"{path} is damaged or not a manifest of semistream: {error}; restore it") from error
