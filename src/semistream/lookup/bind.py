"""Where both schemas meet: a lookup checked against a stream and a master (`LookupPlan`).

A batch is an Arrow record batch of the stream, the master is a store, a key is one or several columns, a page is what
one read of the store returns, the window is where stream rows wait, the cache is where master rows stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from semistream.as_of import AsOf
from semistream.errors import ArgumentError, SchemaError, choose, meant

if TYPE_CHECKING:
    from semistream.joins.conditions import Condition
    from semistream.keys import KeyCodec

How = Literal["left", "inner", "semi", "anti"]
HOWS = ("left", "inner", "semi", "anti")
MULTIPLE = ("all", "first", "error")
MATCHED, UNMATCHED = "matched", "unmatched"  # in the status column


def key_mapping(on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """``on`` as {stream column: master column}."""
    if isinstance(on, str):
        return {on: on}
    if isinstance(on, Mapping):
        mapping = dict(on)
    elif isinstance(on, Sequence):
        mapping = {name: name for name in on}
    else:
        mapping = {}
    if not mapping or not all(isinstance(a, str) and isinstance(b, str) for a, b in mapping.items()):
        raise ArgumentError(
            f"on={on!r} is not usable; give a column name, a list of names, or {{stream column: master column}}"
        )
    return mapping


@dataclass(frozen=True)
class LookupPlan:
    """One join, checked against both schemas: what comes in, what goes out, which master columns are needed."""

    stream: pa.Schema
    master: pa.Schema
    codec: KeyCodec
    on: dict[str, str]
    how: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    condition: Condition | None = None
    ordered: bool = False
    as_of: AsOf | None = None
    multiple: str = "all"
    status: str | None = None  # a column that says whether a row has a match

    @staticmethod
    def make(
        stream: pa.Schema,
        master: pa.Schema,
        codec: KeyCodec,
        on: str | Sequence[str] | Mapping[str, str] | None,
        how: str = "left",
        columns: Sequence[str] | None = None,
        suffix: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        *,
        condition: Condition | None = None,
        ordered: bool = False,
        ignore_case: bool = False,
        as_of: AsOf | None = None,
        multiple: str = "all",
        status: str | None = None,
    ) -> LookupPlan:
        """Check everything that can be checked before the first row; Spark does not tell "a" from "A".

        The join is on the key (``on``), or on a ``condition`` of its own.
        """
        choose("multiple", multiple, MULTIPLE)
        if (on is None) == (condition is None):
            raise ArgumentError("a join needs either on=, the key's columns, or condition=, another comparison")
        if condition is not None and ordered:
            raise ArgumentError("ordered=True goes with on=, not with condition=; sort the output instead")
        if condition is not None and (as_of is not None or multiple != "all"):
            what = "as_of=" if as_of is not None else f"multiple={multiple!r}"
            raise ArgumentError(f"{what} goes with on=, not with condition=: it is about the rows of a key")
        mapping = key_mapping(on) if on is not None else {}
        choose("how", how, HOWS)
        if isinstance(columns, str):
            raise ArgumentError(f"columns={columns!r} must be a list of names, for example [{columns!r}]")
        if suffix is not None and not isinstance(suffix, str):
            raise ArgumentError(f"suffix={suffix!r} must be a text, for example '_master'")
        if defaults is not None and not isinstance(defaults, Mapping):
            raise ArgumentError(f"defaults={defaults!r} must be {{column: value}}")
        stream = pa.schema([field.with_type(_without_views(field.type)) for field in stream])
        folded: Callable[[str], str] = str.lower if ignore_case else str
        _check_unambiguous(stream, [*mapping, *(getattr(each, "stream", None) for each in (as_of, condition))], folded)
        if condition is None:
            codec.check_stream(stream, mapping)
        elif callable(getattr(condition, "check", None)):
            condition.check(stream, master)
        else:
            raise ArgumentError(
                f"condition={condition!r} must be one of semistream.joins.conditions, such as Band(...)"
            )
        if as_of is not None:
            as_of.check(stream, master, list(mapping.values()))
        keys = set(mapping.values())
        chosen = [name for name in master.names if name not in keys] if columns is None else list(columns)
        unknown = [name for name in chosen if name not in master.names]
        if unknown:
            like = meant(unknown[0], master.names)
            said = f"columns={chosen}: the master has no column {unknown[0]!r}; it has {master.names}{like}"
            raise ArgumentError(said)
        if how in ("semi", "anti"):
            chosen = []
        names = _output_names(stream, chosen, suffix, folded)
        plan = LookupPlan(
            stream,
            master,
            codec,
            mapping,
            how,
            tuple(chosen),
            tuple(names),
            dict(defaults or {}),
            condition,
            ordered,
            as_of,
            multiple,
            status,
        )
        plan._check_status(folded)
        plan._check_defaults()
        return plan

    def _check_defaults(self) -> None:
        if self.defaults and self.how != "left":
            raise ArgumentError(
                f"defaults are for rows without a match, which how={self.how!r} does not return; use how='left'"
            )
        for name, value in self.defaults.items():
            if name not in self.names:
                raise ArgumentError(
                    f"defaults name {name!r}, which is no output column of the master; these are {list(self.names)}"
                )
            kind = self.output.field(name).type
            try:
                pa.scalar(value, kind)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ArgumentError(
                    f"defaults: {value!r} does not fit column {name!r} of type {kind}: {error}"
                ) from error

    def _check_status(self, folded: Callable[[str], str]) -> None:
        if self.status is None:
            return
        if not isinstance(self.status, str) or not self.status:
            raise ArgumentError(f"status={self.status!r} must be the name of a new column, such as '_lookup_status'")
        if self.how != "left":
            raise ArgumentError(
                f"status={self.status!r} tells rows with a match from those without, and how={self.how!r} does not "
                "return both; use how='left'"
            )
        if folded(self.status) in {folded(name) for name in (*self.stream.names, *self.names)}:
            raise SchemaError(f"status={self.status!r} is the name of another column already; choose another")

    @cached_property
    def stream_keys(self) -> list[str]:
        """The stream's key columns, in the order of the master's key; or the column that the condition compares."""
        return self.codec.stream_columns(self.on) if self.condition is None else [self.condition.stream]

    @cached_property
    def asked(self) -> list[str]:
        """The stream's columns that decide what matches: its key, and its moment."""
        moment = [] if self.as_of is None or self.as_of.stream in self.stream_keys else [self.as_of.stream]
        return [*self.stream_keys, *moment]

    @property
    def compares(self) -> bool:
        """True when rows with equal codes must be compared before they match."""
        return not self.codec.exact or self.as_of is not None

    @cached_property
    def needed(self) -> list[str]:
        """Master columns that a cached row holds: those that go out and those to compare, of hashed keys and times."""
        keys = [] if self.codec.exact else [item.name for item in self.codec.fields if item.name not in self.columns]
        stored = [name for name in self.columns if not self.is_code(name)]
        times = dict.fromkeys(self.as_of.master_columns) if self.as_of is not None else ()
        return [*stored, *keys, *(name for name in times if name not in stored)]

    def is_code(self, column: str) -> bool:
        """True for an exact key column: it is not stored, the code is its value."""
        return self.codec.exact and column == self.codec.fields[0].name

    @cached_property
    def output(self) -> pa.Schema:
        """The schema of what goes out: all stream columns, then the master's, which are nullable, and the status."""
        added = [
            pa.field(name, self.master.field(column).type)
            for column, name in zip(self.columns, self.names, strict=True)
        ]
        if self.status is not None:
            added.append(pa.field(self.status, pa.string(), nullable=False))
        return pa.schema([*self.stream, *added])


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Arrow cannot take rows from view columns (Polars makes them), so they are carried as plain ones."""
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def _check_unambiguous(stream: pa.Schema, asked: Iterable[object], folded: Callable[[str], str]) -> None:
    """Columns of the stream may share a name, unless the join has to look into them."""
    names = [folded(name) for name in stream.names]
    for name in asked:
        if isinstance(name, str) and names.count(folded(name)) > 1:
            raise SchemaError(
                f"the stream has {names.count(folded(name))} columns {name!r}, so it is not clear which of them to "
                f"compare; its columns are {stream.names}: rename or drop all but one of them"
            )


def _output_names(stream: pa.Schema, chosen: list[str], suffix: str | None, folded: Callable[[str], str]) -> list[str]:
    ours = {folded(name) for name in stream.names}
    clashing = [name for name in chosen if folded(name) in ours]
    if clashing and suffix is None:
        raise SchemaError(
            f"column {clashing[0]!r} is on both sides; give suffix='_master' to rename the master's, "
            "or columns=[...] to leave it out"
        )
    names = [f"{name}{suffix}" if name in clashing else name for name in chosen]
    taken = [folded(name) for name in [*stream.names, *names]]
    twice = [name for name in names if taken.count(folded(name)) > 1]
    if twice:
        raise SchemaError(f"suffix={suffix!r} gives the column name {twice[0]!r} twice; choose another suffix")
    return names
