"""Lookups as of a moment: which versions of a master row were valid when the stream row happened.

The master holds the history of each key, one row per version, valid from ``valid_from`` (included) to ``valid_to``
(excluded). NULL says that a version always was, or still is. A stream row without a moment matches nothing.

>>> price = AsOf("sold_at")
>>> price.covers(pa.array([4, 9, None]), pa.array([None, 5, 5]), pa.array([5, None, 7])).tolist()
[True, True, False]

The three columns must be of one kind, in any unit: dates, timestamps that all have a time zone or all have none, or
whole numbers. They are compared exactly, and without a unit in which a far future would not fit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.keys import Mask
from semistream.rows import plain_values, raw_values

VALID_FROM, VALID_TO = "valid_from", "valid_to"
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a timestamp, a second
_DAY_TICKS = 86_400_000  # of date64, a day


@dataclass(frozen=True)
class AsOf:
    """The stream's column with the moment, and the master's two columns between which a version is valid."""

    stream: str
    valid_from: str = VALID_FROM
    valid_to: str = VALID_TO

    @staticmethod
    def from_arguments(as_of: str | None, valid_from: str, valid_to: str) -> "AsOf | None":
        """From the arguments of a join; None when there is no moment."""
        names = {"as_of": as_of, VALID_FROM: valid_from, VALID_TO: valid_to}
        for argument, name in names.items():
            if not (isinstance(name, str) and name) and not (argument == "as_of" and name is None):
                whose = "stream" if argument == "as_of" else "master"
                raise ArgumentError(f"{argument}={name!r} must be the name of a column of the {whose}")
        if as_of is not None:
            return AsOf(as_of, valid_from, valid_to)
        if (valid_from, valid_to) != (VALID_FROM, VALID_TO):
            raise ArgumentError(
                f"valid_from={valid_from!r} and valid_to={valid_to!r} go with as_of=, the stream's column with the "
                "moment; give it too"
            )
        return None

    @property
    def master_columns(self) -> tuple[str, str]:
        return self.valid_from, self.valid_to

    def check(self, stream: pa.Schema, master: pa.Schema, key: list[str]) -> None:
        """Raise if the columns are not there, are part of the key, or cannot be compared."""
        if stream.get_field_index(self.stream) < 0:
            raise ArgumentError(f"as_of={self.stream!r}: the stream has no such column; its columns are {stream.names}")
        ours = stream.field(self.stream).type
        for argument, name in zip((VALID_FROM, VALID_TO), self.master_columns, strict=True):
            if name not in master.names:
                raise ArgumentError(
                    f"{argument}={name!r}: the master has no such column; it has {master.names}. as_of= needs a "
                    "history, one row per version"
                )
            if name in key:
                raise ArgumentError(
                    f"{argument}={name!r} is part of the master's key {key}, so one version could not be told from "
                    "another of the same key; build the master with key= its business key alone"
                )
            theirs = master.field(name).type
            if _kind(ours) is None or _kind(ours) != _kind(theirs):
                raise SchemaError(
                    f"as_of={self.stream!r} is {ours}, the master's {name!r} is {theirs}; both must be dates, "
                    "timestamps with a time zone, timestamps without one, or whole numbers. Cast one side"
                )

    def covers(self, moments: pa.Array, begins: pa.Array, ends: pa.Array) -> Mask:
        """Row by row, is the moment between the two?"""
        at, begin = _aligned(moments, begins)
        till, end = _aligned(moments, ends)
        return _known(moments) & ((begin <= at) | ~_known(begins)) & ((till < end) | ~_known(ends))

    def __str__(self) -> str:
        return f"{self.valid_from} <= {self.stream} < {self.valid_to}"


def _kind(kind: pa.DataType) -> str | None:
    """What a column counts, whatever the unit; None for what is no moment."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamp with time zone"
    if types.is_date(kind):
        return "date"
    return "whole number" if types.is_integer(kind) else None


def _known(column: pa.Array) -> Mask:
    return np.asarray(column.is_valid()) if column.null_count else np.ones(len(column), np.bool_)


def _aligned(moments: pa.Array, bounds: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Both as whole numbers of the coarser of their units, such that they compare as before.

    A moment is rounded down and a bound up: for whole e and f > 0, v ≤ e·f is ⌈v/f⌉ ≤ e, and v·f ≤ e is v ≤ ⌊e/f⌋. The
    finer unit would not do, since a bound in the year 9999 does not fit nanoseconds.
    """
    (at, ours), (bound, theirs) = _numbers(moments), _numbers(bounds)
    if ours > theirs:
        at = at // (ours // theirs)
    elif theirs > ours:
        factor = theirs // ours
        bound = bound // factor + (bound % factor != 0)
    return at, bound


def _numbers(column: pa.Array) -> tuple[npt.NDArray[Any], int]:
    """The values of a column as whole numbers (anything where it is NULL), and how many of them make its unit."""
    column = plain_values(column)
    if pa.types.is_timestamp(column.type):
        return raw_values(column), _TICKS[column.type.unit]
    return raw_values(column), _DAY_TICKS if pa.types.is_date64(column.type) else 1
