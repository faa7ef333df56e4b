"""What a dimension is, as its store's manifest keeps it, and what a change of its members amounts to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

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

    @property
    def validity(self) -> list[str]:
        """The columns that only a history has."""
        return [VALID_FROM, VALID_TO, OBSERVED] if self.history else []

    @staticmethod
    def load(text: str) -> Shape:
        """From the manifest."""
        found = json.loads(text)
        return Shape(**{**found, "key": tuple(found["key"]), "attributes": tuple(found["attributes"])})

    def dump(self) -> str:
        """For the manifest."""
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
class Work:
    """Rows to write, the next surrogate key after them, and what they mean."""

    rows: pa.Table
    next_key: int
    counts: Counts = field(default_factory=Counts)
