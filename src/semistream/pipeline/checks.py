"""Everything that can be wrong with a declared pipeline, found before Spark starts.

Columns are followed from the source through the steps: their names always, their types as far as they are declared.
Expressions are parsed as Spark SQL, so that their syntax and the columns they use are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, SchemaError, SemistreamError, StepError, meant
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec
from semistream.pipeline.columns import PREFIX
from semistream.pipeline.expressions import columns_of
from semistream.pipeline.steps import Compute, Deduplicate, Keep, Lookup, Select, Step
from semistream.stores import MasterStore


@dataclass
class _Columns:
    """What is known of a row at some point: {column: type, None when it is Spark that will tell}."""

    types: dict[str, pa.DataType | None]
    number: int = 0
    given_later: set[str] = field(default_factory=set)  # surrogate keys that are filled in after all steps
    source: set[str] = field(default_factory=set)  # empty while Spark has not told
    several: str = ""  # the lookup that may give several rows for one, if there was one
    more: bool = False  # the source may have further columns: Spark will tell

    def need(self, name: str, word: str) -> None:
        if name in self.given_later:
            raise StepError(
                self.number, word, f"{name!r} is not known yet for members that are made; put this step before it"
            )
        if not self.more and name not in self.types:
            raise StepError(
                self.number,
                word,
                f"there is no column {name!r} here; there are {list(self.types)}{meant(name, self.types)}",
            )

    def add(self, name: str, kind: pa.DataType | None, word: str) -> None:
        if name.lower().startswith(PREFIX):
            raise StepError(self.number, word, f"{name!r}: names that begin with {PREFIX!r} are used by the pipeline")
        if name in self.types:
            raise StepError(
                self.number, word, f"there is a column {name!r} already; give the new one a name of its own"
            )
        self.types[name] = kind


def check_steps(steps: Sequence[Step], source: pa.Schema | None) -> None:
    """Raise for the first step that cannot be. Without a ``source`` schema only the steps' own columns are checked."""
    known = _Columns({item.name: item.type for item in source or ()}, more=source is None)
    known.source = set(known.types)
    for number, step in enumerate(steps):
        known.number = number
        if isinstance(step, Lookup):
            _lookup(step, known)
        elif isinstance(step, Compute):
            for name, expression in step.columns.items():
                for used in _used(expression, number, name):
                    known.need(used, name)
                known.add(name, None, name)
        elif isinstance(step, Keep):
            for used in _used(step.condition, number, "keep"):
                known.need(used, "keep")
        elif isinstance(step, Deduplicate):
            _deduplicate(step, known, steps, source)
        elif isinstance(step, Select):
            for name in step.columns.values():
                if name not in known.given_later:
                    known.need(name, "select")
            if number != len(steps) - 1:
                raise StepError(number, "select", "select says what the table gets, so it must be the last step")
        else:
            raise ArgumentError(
                f"step {number + 1} is {step!r}; use lookup, assign_keys, compute, keep, deduplicate, select"
            )
    lookups = [step.name for step in steps if isinstance(step, Lookup)]
    twice = [name for name in lookups if lookups.count(name) > 1]
    if twice:
        raise ArgumentError(f"two lookups are named {twice[0]!r}; give one of them another name=")


def _lookup(step: Lookup, known: _Columns) -> None:
    number = known.number
    try:
        store = MasterStore.open(step.store)
    except SemistreamError as error:
        raise StepError(number, "lookup", str(error)) from error
    for name in (*step.on, *([step.as_of] if step.as_of else [])):
        known.need(name, "on" if name in step.on else "as_of")
    if all(known.types.get(name) is not None for name in step.on):
        stream = pa.schema([pa.field(name, known.types[name]) for name in step.on])
        columns = [] if step.columns is None else list(step.columns)
        try:
            bind(LookupSpec(on=step.on, columns=columns, suffix="_master"), stream, store)
        except SemistreamError as error:
            raise StepError(number, "columns" if isinstance(error, ArgumentError) else "on", str(error)) from error
    keys = set(step.on.values())
    chosen = step.columns if step.columns is not None else [name for name in store.schema.names if name not in keys]
    unknown = [name for name in (*chosen, *step.rename) if name not in store.schema.names]
    if unknown:
        like = meant(unknown[0], store.schema.names)
        said = f"{step.store} has no column {unknown[0]!r}; it has {store.schema.names}{like}"
        raise StepError(number, "columns", said)
    if step.as_of is not None:
        for word in ("valid_from", "valid_to"):
            name = getattr(step, word)
            if name not in store.schema.names:
                raise StepError(number, word, f"{step.store} has no column {name!r}; it has {store.schema.names}")
    if known.several and known.source and step.on_miss in ("hold", "redirect"):
        given = [name for name in (*step.on, *([step.as_of] if step.as_of else [])) if name not in known.source]
        if given:
            raise StepError(
                number,
                "on_miss",
                f"on_miss={step.on_miss!r} sets whole rows aside, but {known.several!r} may give several for one, and "
                f"{given[0]!r} tells them apart: some would be loaded twice. Use another on_miss",
            )
    if step.multiple == "all" and step.as_of is None and not store.unique:  # of a history one row holds at a time
        known.several = step.name
    for name in chosen:
        known.add(step.rename.get(name, name), store.schema.field(name).type, "columns")
    if step.on_miss == "infer":
        _infers(step, chosen, known)
    if step.is_dimension and step.as_of is None and Dimension(store).shape.history:
        raise StepError(
            number, "as_of", f"{step.store} keeps the versions of its members; say by as_of= which of them is meant"
        )


def _infers(step: Lookup, chosen: Sequence[str], known: _Columns) -> None:
    try:
        surrogate = Dimension.open(step.store).shape.surrogate
    except SemistreamError as error:
        raise StepError(known.number, "on_miss", f"on_miss='infer' needs a dimension: {error}") from error
    if surrogate not in chosen:
        raise StepError(
            known.number, "columns", f"on_miss='infer' fills the surrogate key {surrogate!r}; name it among columns"
        )
    known.given_later.add(step.rename.get(surrogate, surrogate))


def _deduplicate(step: Deduplicate, known: _Columns, steps: Sequence[Step], source: pa.Schema | None) -> None:
    for name in (*step.key, *step.order_by):
        known.need(name, "deduplicate")
        if source is not None and name not in source.names:
            raise StepError(known.number, "deduplicate", f"{name!r} must be a column of the source, not a computed one")
    if known.several:
        raise StepError(
            known.number,
            "deduplicate",
            f"{known.several!r} may give several rows for one, all but one of which would go; put this step before it",
        )
    if sum(isinstance(one, Deduplicate) for one in steps) > 1:
        raise StepError(
            known.number, "deduplicate", "a pipeline can deduplicate once; name all columns of the key in it"
        )


def _used(expression: str, number: int, word: str) -> list[str]:
    try:
        return columns_of(expression)
    except ArgumentError as error:
        raise StepError(number, word, str(error)) from error


def check_required(required: Sequence[str], source: pa.Schema | None) -> None:
    """Refuse required columns that are not there."""
    unknown = [] if source is None else [name for name in required if name not in source.names]
    if unknown:
        raise SchemaError(f"required={list(required)}: the source has no column {unknown[0]!r}; it has {source.names}")  # type: ignore[union-attr]
