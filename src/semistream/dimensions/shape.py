"""What a dimension is, as its store's manifest keeps it, and what a change of its members amounts to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from semistream.changes.rows import Reject
from semistream.errors import ArgumentError

VALID_FROM, VALID_TO, INFERRED, OBSERVED = "valid_from", "valid_to", "inferred", "observed"
VALIDITY = (VALID_FROM, VALID_TO, OBSERVED)  # the columns that only a history has
NEXT = "next_key"
DIMENSION = "dimension"


@dataclass(frozen=True)
class Shape:
    """The names of a dimension's columns, and which number stands for an unknown member."""

    key: tuple[str, ...]
    attributes: tuple[str, ...]
    surrogate: str
    history: bool = False
    source: str | None = None
    unknown_key: int = -1
    unknown_member: Mapping[str, Any] | None = None

    @staticmethod
    def load(text: str) -> Shape:
        found = json.loads(text)
        return Shape(tuple(found.pop("key")), tuple(found.pop("attributes")), **found)

    def dump(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Counts:
    """What a change of members does, in rows of the dimension."""

    created: int = 0
    changed: int = 0
    closed: int = 0
    completed: int = 0
    unchanged: int = 0
    deletes_kept: int = 0


@dataclass
class DimensionChange(Counts):
    """What `Dimension.apply` did; ``applied`` is False when the token's batch was there already."""

    version: int = 0
    applied: bool = True
    rejects: list[Reject] = field(default_factory=list)


@dataclass
class Work:
    """Rows to write, the next surrogate key after them, and what they mean."""

    rows: pa.Table
    next_key: int
    counts: Counts = field(default_factory=Counts)


def unknown_row(shape: Shape, schema: pa.Schema) -> pa.Table:
    """The row of the unknown member, if the dimension has one."""
    if shape.unknown_member is None:
        return schema.empty_table()
    unknown = [name for name in shape.unknown_member if name not in shape.attributes]
    if unknown:
        raise ArgumentError(
            f"unknown_member: {unknown[0]!r} is no attribute; the attributes are {list(shape.attributes)}"
        )
    row = {**shape.unknown_member, shape.surrogate: shape.unknown_key, INFERRED: False}
    try:
        return pa.Table.from_pylist([row], schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ArgumentError(f"unknown_member={shape.unknown_member!r} does not fit the attributes: {error}") from error
