"""Where both schemas meet: what was asked of a lookup (`LookupSpec`) checked against a stream and a master."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from semistream.as_of import AsOf
from semistream.errors import ArgumentError, SchemaError, meant
from semistream.lookup.spec import How, JoinSpec, LookupSpec, Multiple
from semistream.rows import without_views

if TYPE_CHECKING:
    from semistream.joins.conditions import Condition
    from semistream.keys import KeyCodec
    from semistream.stores.contract import Store

AnyStore = TypeVar("AnyStore", bound="Store")
MATCHED, UNMATCHED = "matched", "unmatched"  # in the status column


@dataclass(frozen=True)
class LookupPlan:
    """One lookup, checked against both schemas: what comes in, what goes out, which master columns are needed."""

    spec: LookupSpec
    stream: pa.Schema
    master: pa.Schema
    codec: "KeyCodec"
    columns: tuple[str, ...]
    names: tuple[str, ...]  # of these columns in the output
    # Of the spec, as joins need it:
    how: How
    multiple: Multiple
    status: str | None
    defaults: dict[str, Any]
    as_of: AsOf | None
    condition: "Condition | None"  # the comparison of a lookup that is not by key
    ordered: bool
    threads: int  # that the join may use

    @cached_property
    def stream_keys(self) -> list[str]:
        """The stream's key columns, in the order of the master's key; or the column that the condition compares."""
        return self.codec.stream_columns(self.spec.keys) if self.condition is None else [self.condition.stream]

    @cached_property
    def matching_columns(self) -> list[str]:
        """The stream's columns that decide what matches: its key, and its moment."""
        return list(dict.fromkeys([*self.stream_keys, *([] if self.as_of is None else [self.as_of.stream])]))

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

    def reads(self, store: AnyStore) -> AnyStore:
        """What this lookup reads of a store: the narrowest part of it with all columns that are needed."""
        return store if self.condition is not None else store.covering(self.needed)

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


def bind(spec: LookupSpec, stream: pa.Schema, store: "Store", *, ignore_case: bool = False) -> LookupPlan:
    """Check everything that can be checked before the first row; Spark does not tell "a" from "A" (``ignore_case``)."""
    master = store.schema
    stream = pa.schema([field.with_type(_carried(field)) for field in stream])
    folded: Callable[[str], str] = str.lower if ignore_case else str
    condition, as_of = spec.condition if isinstance(spec, JoinSpec) else None, spec.moment
    _check_unambiguous(stream, [*spec.keys, *(getattr(each, "stream", None) for each in (as_of, condition))], folded)
    if condition is None:
        store.codec.check_stream(stream, spec.keys)
    elif callable(getattr(condition, "check", None)):
        condition.check(stream, master)
    else:
        raise ArgumentError(f"condition={condition!r} must be one of semistream.joins.conditions, such as Band(...)")
    if as_of is not None:
        as_of.check(stream, master, list(spec.keys.values()))
    keys = set(spec.keys.values())
    chosen = [name for name in master.names if name not in keys] if spec.columns is None else list(spec.columns)
    unknown = [name for name in chosen if name not in master.names]
    if unknown:
        like = meant(unknown[0], master.names)
        raise ArgumentError(f"columns={chosen}: the master has no column {unknown[0]!r}; it has {master.names}{like}")
    if spec.how in ("semi", "anti"):
        chosen = []
    names = _output_names(stream, chosen, spec.suffix, folded)
    if spec.status is not None and folded(spec.status) in {folded(name) for name in (*stream.names, *names)}:
        raise SchemaError(f"status={spec.status!r} is the name of another column already; choose another")
    plan = LookupPlan(
        spec,
        stream,
        master,
        store.codec,
        tuple(chosen),
        tuple(names),
        how=spec.how,
        multiple=spec.multiple,
        status=spec.status,
        defaults=dict(spec.defaults or {}),
        as_of=as_of,
        condition=condition,
        ordered=isinstance(spec, JoinSpec) and spec.ordered,
        threads=(spec.threads or len(os.sched_getaffinity(0))) if isinstance(spec, JoinSpec) else 1,
    )
    _check_defaults(plan)
    return plan


def _carried(field: pa.Field) -> pa.DataType:
    """The type that a column of the stream goes through a join with; Arrow can take rows from it."""
    kind = without_views(field.type)
    try:
        pa.nulls(0, field.type).cast(kind).take(pa.array([], pa.int64()))
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"the stream's column {field.name!r} is {field.type}, from which Arrow cannot take rows: cast it (from "
            "run-end-encoded values with pyarrow.compute.run_end_decode), or drop it"
        ) from error
    return kind


def _check_defaults(plan: LookupPlan) -> None:
    for name, value in plan.defaults.items():
        if name not in plan.names:
            raise ArgumentError(
                f"defaults name {name!r}, which is no output column of the master; these are {list(plan.names)}"
            )
        kind = plan.output.field(name).type
        try:
            pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"defaults: {value!r} does not fit column {name!r} of type {kind}: {error}") from error


def _check_unambiguous(stream: pa.Schema, columns: Iterable[object], folded: Callable[[str], str]) -> None:
    """Columns of the stream may share a name, unless the join has to look into them."""
    names = [folded(name) for name in stream.names]
    for name in columns:
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
