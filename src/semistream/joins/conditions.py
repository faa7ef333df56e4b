"""Conditions other than equality, for joins that scan R: inequality, band, range and similarity of strings.

>>> import pyarrow as pa
>>> near = Band("temperature", "reading", 0.5)
>>> left, right = next(near.pairs(pa.array([1.0, 9.0]), [pa.array([0.6, 1.4, 9.6])], 100))
>>> left.tolist(), right.tolist()
([0, 0], [0, 1])

A condition compares one column of the stream with one or two of the master. NULL and NaN satisfy none.
"""

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import ArgumentError, SchemaError, choose
from semistream.joins.groups import product_of_groups
from semistream.joins.output import Indices
from semistream.keys import Mask

Pairs = Iterator[tuple[Indices, Indices]]
_COMPARISONS = ("<", "<=", ">", ">=")
_MICROSECONDS = {"D": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_CELLS = 1 << 20  # comparisons made at a time


@dataclass(frozen=True)
class Condition(ABC):
    stream: str
    master: str

    @property
    def master_columns(self) -> tuple[str, ...]:
        return (self.master,)

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        """Raise if the columns are not there or cannot be compared."""
        for name in self.master_columns:
            for side, column, schema in (("stream", self.stream, stream), ("master", name, master)):
                if column not in schema.names:
                    raise ArgumentError(f"condition: the {side} has no column {column!r}; it has {schema.names}")
            self._check_types(stream.field(self.stream).type, master.field(name).type)

    def _check_types(self, ours: pa.DataType, theirs: pa.DataType) -> None:
        if _common(ours, theirs) is None:
            raise SchemaError(
                f"{self}: stream column {self.stream!r} is {ours}, the master's is {theirs}; both must be whole "
                "numbers, floats, or the same kind of date or time; cast one of them"
            )

    @abstractmethod
    def pairs(self, stream: pa.Array, master: list[pa.Array], most: int) -> Pairs:
        """All pairs of positions that satisfy the condition, at most ``most`` at a time."""


@dataclass(frozen=True)
class Inequality(Condition):
    """``stream < master``, or another comparison."""

    comparison: str = "<"

    def __post_init__(self) -> None:
        choose("comparison", self.comparison, _COMPARISONS)

    def pairs(self, stream: pa.Array, master: list[pa.Array], most: int) -> Pairs:
        ours, theirs = _Known.of(stream, master[0].type), _Known.of(master[0], stream.type).ordered()
        at = np.searchsorted(theirs.values, ours.values, "left" if self.comparison in (">", "<=") else "right")
        if self.comparison in (">", ">="):
            yield from _ranges(ours, theirs, np.zeros(len(at), np.int64), at, most)
        else:
            yield from _ranges(ours, theirs, at, np.full(len(at), len(theirs.values)), most)


@dataclass(frozen=True)
class Band(Condition):
    """``master − below ≤ stream ≤ master + above``; a number, or a timedelta for dates and times."""

    above: Any
    below: Any = None

    def __post_init__(self) -> None:
        for name in ("above", "below"):
            value = getattr(self, name)
            number = isinstance(value, int | float | dt.timedelta) and not isinstance(value, bool)
            if not (number or (name == "below" and value is None)):
                raise ArgumentError(f"{name}={value!r} must be a number or a timedelta")

    def pairs(self, stream: pa.Array, master: list[pa.Array], most: int) -> Pairs:
        ours, theirs = _Known.of(stream, master[0].type), _Known.of(master[0], stream.type).ordered()
        above, below = self._widths(master[0].type)
        first = np.searchsorted(theirs.values, _moved(ours.values, -above), "left")
        last = np.searchsorted(theirs.values, _moved(ours.values, below), "right")
        yield from _ranges(ours, theirs, first, last, most)

    def _widths(self, kind: pa.DataType) -> tuple[Any, Any]:
        above = _width(self.above, kind)
        return above, above if self.below is None else _width(self.below, kind)

    def _check_types(self, ours: pa.DataType, theirs: pa.DataType) -> None:
        super()._check_types(ours, theirs)
        self._widths(theirs)


@dataclass(frozen=True)
class Between(Condition):
    """``master ≤ stream ≤ until``: a range that is given by two columns of the master."""

    until: str = ""

    def __post_init__(self) -> None:
        if not self.until:
            raise ArgumentError("Between needs the master's column that ends the range: Between(stream, master, until)")

    @property
    def master_columns(self) -> tuple[str, ...]:
        return (self.master, self.until)

    def pairs(self, stream: pa.Array, master: list[pa.Array], most: int) -> Pairs:
        # The same values of the stream are known, whatever they are compared with.
        above, below = (_Known.of(stream, column.type) for column in master)
        low, high = (_Known.of(column, stream.type) for column in master)
        theirs, at_low, at_high = np.intersect1d(low.places, high.places, return_indices=True)
        lows, highs = low.values[at_low], high.values[at_high]

        def inside(some: slice) -> Mask:
            return (above.values[some, None] >= lows) & (below.values[some, None] <= highs)

        yield from _all_with_all(above.places, theirs, most, inside)


@dataclass(frozen=True)
class Similar(Condition):
    """At most ``distance`` insertions, deletions and replacements of a character apart (Levenshtein)."""

    distance: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.distance, int) or not 0 <= self.distance < 255:
            raise ArgumentError(f"distance={self.distance!r} must be a whole number from 0 to 254")

    def _check_types(self, ours: pa.DataType, theirs: pa.DataType) -> None:
        for kind in (ours, theirs):
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise SchemaError(f"{self}: a column is {kind}; similarity compares strings")
        _rapidfuzz()

    def pairs(self, stream: pa.Array, master: list[pa.Array], most: int) -> Pairs:
        process, levenshtein = _rapidfuzz()
        ours, theirs = (column.drop_null().to_pylist() for column in (stream, master[0]))
        known, there = (pc.indices_nonzero(column.is_valid()).to_numpy() for column in (stream, master[0]))

        def near(some: slice) -> Mask:
            far = process.cdist(
                ours[some], theirs, scorer=levenshtein.distance, score_cutoff=self.distance, dtype=np.uint8
            )
            return np.asarray(far <= self.distance)

        yield from _all_with_all(known, there, most, near)


# -- values that can be ordered --------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """The known values of a column as numbers, with their places."""

    values: npt.NDArray[Any]
    places: Indices

    @staticmethod
    def of(column: pa.Array, other: pa.DataType) -> "_Known":
        """As they compare with a column of the other type."""
        kind = _common(column.type, other)
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
        values = column.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False) & ~np.isnan(values))
        return _Known(values[places], places)

    def ordered(self) -> "_Known":
        order = np.argsort(self.values, kind="stable")
        return _Known(self.values[order], self.places[order])


def _ranges(ours: _Known, theirs: _Known, first: Indices, last: Indices, most: int) -> Pairs:
    everyone = np.arange(len(first))
    for left, right in product_of_groups(everyone, everyone + 1, first, np.maximum(first, last), most):
        yield ours.places[left], theirs.places[right]


def _all_with_all(ours: Indices, theirs: Indices, most: int, compare: Callable[[slice], Mask]) -> Pairs:
    """Pairs of places, by comparing a few of ours at a time with all of theirs."""
    step = max(1, min(_CELLS, most) // max(1, len(theirs)))
    for start in range(0, len(ours) if len(theirs) else 0, step):
        some = slice(start, start + step)
        left, right = np.nonzero(compare(some))
        if len(left):
            yield ours[some][left], theirs[right]


def _common(ours: pa.DataType, theirs: pa.DataType) -> pa.DataType | None:
    """The type in which values of both compare exactly, if there is one."""
    types = pa.types
    small = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())
    if types.is_integer(ours) and types.is_integer(theirs):
        return None if pa.uint64() in (ours, theirs) else pa.int64()
    if types.is_floating(ours) or types.is_floating(theirs):
        return pa.float64() if all(types.is_floating(kind) or kind in small for kind in (ours, theirs)) else None
    if types.is_timestamp(ours) and types.is_timestamp(theirs):
        same = ours.unit == theirs.unit and (ours.tz is None) == (theirs.tz is None)
        return pa.int64() if same else None
    return pa.int64() if types.is_temporal(ours) and ours == theirs else None


def _width(value: Any, kind: pa.DataType) -> Any:
    """A band's width in the numbers of a column."""
    if isinstance(value, dt.timedelta):
        if not pa.types.is_temporal(kind):
            raise ArgumentError(f"a band of {value} does not suit a column of type {kind}; give a number")
        unit = "D" if pa.types.is_date32(kind) else getattr(kind, "unit", "ms")  # date64 counts milliseconds
        if unit == "ns":
            return (value // dt.timedelta(microseconds=1)) * 1000
        value = value / dt.timedelta(microseconds=_MICROSECONDS[unit])
    if pa.types.is_floating(kind):
        return float(value)
    if float(value) != int(value):
        raise ArgumentError(
            f"a band of {value} does not suit a column of type {kind}; give a whole number of its units"
        )
    return int(value)


def _moved(values: npt.NDArray[Any], by: Any) -> npt.NDArray[Any]:
    """Values plus a number, without passing the ends of 64 bits."""
    if values.dtype == np.float64:
        return values + by
    ends = np.iinfo(np.int64)
    return np.clip(values, ends.min - min(0, by), ends.max - max(0, by)) + by


def _rapidfuzz() -> tuple[Any, Any]:
    try:
        from rapidfuzz import process
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise ArgumentError("Similar needs the package rapidfuzz: pip install 'semistream[similarity]'") from error
    return process, Levenshtein
