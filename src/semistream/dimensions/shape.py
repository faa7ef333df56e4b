"""What a dimension is, as its store's manifest keeps it, and what a change of its members amounts to."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import pyarrow as pa

from semistream.changes.rows import Reject
from semistream.errors import ArgumentError

VALID_FROM, VALID_TO, INFERRED, OBSERVED = "valid_from", "valid_to", "inferred", "observed"
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
    def store_schema(key: pa.Schema, surrogate: str, attributes: pa.Schema, time: pa.DataType | None) -> pa.Schema:
        """The columns of a dimension's store; with a history they say by the type ``time`` when a version is valid."""
        fields = [*key, pa.field(surrogate, pa.int64()), *attributes, pa.field(INFERRED, pa.bool_())]
        if time is not None:
            fields += [pa.field(VALID_FROM, time), pa.field(VALID_TO, time), pa.field(OBSERVED, pa.binary())]
        names = [item.name for item in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(f"column {twice[0]!r} would be there twice; a dimension has the columns {names}")
        return pa.schema(fields)

    @classmethod
    def load(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(tuple(found.pop("key")), tuple(found.pop("attributes")), **found)

    def dump(self) -> str:
        return json.dumps(asdict(self))

    def unknown_row(self, schema: pa.Schema) -> pa.Table:
        """The row of the unknown member, if the dimension has one."""
        if self.unknown_member is None:
            return schema.empty_table()
        for name in self.unknown_member:
            if name not in self.attributes:
                known = list(self.attributes)
                raise ArgumentError(f"unknown_member: {name!r} is no attribute; the attributes are {known}")
        row = {**self.unknown_member, self.surrogate: self.unknown_key, INFERRED: False}
        try:
            return pa.Table.from_pylist([row], schema=schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            said = f"does not fit the attributes: {error}"
            raise ArgumentError(f"unknown_member={self.unknown_member!r} {said}") from error


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
