"""``lookup``: columns of a master, for the rows that have its key.

Lookups that stand side by side are done together, in one crossing to Python (`look_up`), in the order that costs least
(`memory`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import format_bytes
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, SchemaError, SemistreamError, local_path, meant
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec, asks
from semistream.pipeline import columns as names
from semistream.pipeline.memory import Claim, Memory
from semistream.pipeline.routes import Departure, leave_by
from semistream.pipeline.staging import Route
from semistream.pipeline.steps.contract import Form, Known, Step
from semistream.pipeline.steps.spec import PipelineLookupSpec
from semistream.spark.frames import quoted, spark_arrow
from semistream.spark.lookups import CrossingLookup, look_up_all
from semistream.spark.prepare import FrameFacts, prepare
from semistream.spark.spec import EnrichSpec
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.layout import Layout, Schemas


# Of a row without a match; one that is held goes there when it has waited in vain, if it is not loaded then.
_ROUTES = {"drop": names.DROPPED, "fail": names.FAILED, "redirect": names.UNMATCHED, "hold": names.UNMATCHED}
_GIVEN_UP = f"coalesce({names.EXPIRED}, false)"  # of a row that was held: it waited in vain


@dataclass(frozen=True, kw_only=True)
class Lookup(PipelineLookupSpec, Step):
    """Add columns of a master to the rows that have its key."""

    store: Path
    unknown_key: int | None = None  # of a dimension: the surrogate key of rows without a member

    @property
    def leaves(self) -> bool:
        """Does a row without a match go another way than into the table?"""
        return self.on_miss in ("drop", "fail", "redirect", "hold")

    @property
    def is_dimension(self) -> bool:
        """Does it give surrogate keys, of members that it may have to make?"""
        return self.on_miss == "infer" or self.unknown_key is not None

    @property
    def asks(self) -> list[str]:
        return [*self.keys, *([self.as_of] if self.as_of is not None else [])]

    @property
    def redirects(self) -> bool:
        return self.on_miss == "redirect" or (self.on_miss == "hold" and self.then == "redirect")

    @property
    def in_driver(self) -> bool:
        return self.on_miss in ("hold", "infer")

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        return (self,)

    def claim(self, seen: SeenKeys | None) -> Claim:
        store = MasterStore.open(self.store)
        return Claim(self.name, store, self.columns, self.algorithm, self.memory, grows=self.on_miss == "infer")

    def describe(self, memory: Memory) -> list[str]:
        mine = memory[self.name]
        how = f"{mine.algorithm or 'to be chosen'} in {format_bytes(mine.memory_bytes)}"
        return [f"lookup {self.name} on {', '.join(self.keys)}: {how}, misses: {self.on_miss}"]

    def routes(self, number: int, layout: Layout, schemas: Schemas, staging: str, started: float) -> list[Route]:
        """Rows that are held, with the key that they wait for."""
        if self.on_miss != "hold":
            return []
        asked = names.asked_columns(number, len(self.keys))
        fields = [pa.field(name, schemas.hidden[name]) for name in layout.carried]
        fields += [pa.field(names.held_key(n), schemas.hidden[name]) for n, name in enumerate(asked)]
        taken = [*layout.carried, *asked]
        if self.as_of is not None:
            fields.append(pa.field(names.HELD_TIME, schemas.hidden[names.time_column(number)]))
            taken.append(names.time_column(number))
        schema = pa.schema([*fields, pa.field(names.SINCE, pa.float64())])
        route = f"{names.HELD}:{self.name}"
        return [Route(route, (*taken, names.SINCE), schema, staging, {names.SINCE: started})]

    def check(self, known: Known) -> None:
        """Its store and the columns on both sides are there and fit, and no row would be loaded twice."""
        try:
            store = MasterStore.open(self.store)
        except SemistreamError as error:
            raise known.error("lookup", str(error)) from error
        known.need(self.keys, "on")
        known.need([self.as_of] if self.as_of is not None else [], "as_of")
        self._check_types(store, known)
        keys = set(self.keys.values())
        chosen = self.columns if self.columns is not None else [name for name in store.schema.names if name not in keys]
        unknown = [name for name in (*chosen, *(self.rename or {})) if name not in store.schema.names]
        if unknown:
            like = meant(unknown[0], store.schema.names)
            said = f"{self.store} has no column {unknown[0]!r}; it has {store.schema.names}{like}"
            raise known.error("columns", said)
        if self.as_of is not None:
            for word, name in (("valid_from", self.valid_from), ("valid_to", self.valid_to)):
                if name not in store.schema.names:
                    raise known.error(word, f"{self.store} has no column {name!r}; it has {store.schema.names}")
        if known.several and known.source and self.on_miss in ("hold", "redirect"):
            given = [name for name in self.asks if name not in known.source]
            if given:
                raise known.error(
                    "on_miss",
                    f"on_miss={self.on_miss!r} sets whole rows aside, but {known.several!r} may give several for one, "
                    f"and {given[0]!r} tells them apart: some would be loaded twice. Use another on_miss",
                )
        if self.multiple == "all" and self.as_of is None and not store.unique:  # of a history one row holds at a time
            known.several = self.name
        for name in chosen:
            known.add(self.new_name(name), store.schema.field(name).type, "columns")
        if self.on_miss == "infer":
            self._check_infers(chosen, known)
        if self.is_dimension and self.as_of is None and Dimension(store).shape.history:
            said = f"{self.store} keeps the versions of its members; say by as_of= which of them is meant"
            raise known.error("as_of", said)

    def _check_types(self, store: MasterStore, known: Known) -> None:
        if any(known.types.get(name) is None for name in self.keys):
            return
        stream = pa.schema([pa.field(name, known.types[name]) for name in self.keys])
        columns = [] if self.columns is None else list(self.columns)
        try:
            bind(LookupSpec(on=self.keys, columns=columns, suffix="_master"), stream, store)
        except SemistreamError as error:
            raise known.error("columns" if isinstance(error, ArgumentError) else "on", str(error)) from error

    def _check_infers(self, chosen: Sequence[str], known: Known) -> None:
        try:
            surrogate = Dimension.open(self.store).shape.surrogate
        except SemistreamError as error:
            raise known.error("on_miss", f"on_miss='infer' needs a dimension: {error}") from error
        if surrogate not in chosen:
            said = f"on_miss='infer' fills the surrogate key {surrogate!r}; name it among columns"
            raise known.error("columns", said)
        known.given_later.add(self.new_name(surrogate))


@dataclass(frozen=True)
class PlacedLookup:
    """A lookup of the pipeline with its place among the steps, the version that it reads the memory that it has, and
    the file of its hot keys."""

    step: Lookup
    number: int
    store: MasterStore | Path
    version: int
    memory: int
    hot_keys: Path


def look_up(frame: DataFrame, lookups: Sequence[PlacedLookup], tasks: int) -> DataFrame:
    """Lookups that stand side by side: the masters' columns, their statuses, and the routes of rows without a match."""
    from pyspark.sql import functions as F

    if not lookups:
        return frame
    about = FrameFacts.of(frame)
    kinds = {item.name: item.type for item in about.schema}
    asked: list[CrossingLookup] = []
    beside: dict[str, str] = {}
    for one in lookups:
        step = one.step
        columns = dict(zip(names.asked_columns(one.number, len(step.keys)), step.keys, strict=True))
        on = dict(zip(columns, step.keys.values(), strict=True))
        if step.as_of is not None:
            columns[names.time_column(one.number)] = step.as_of
        foreign = [f"{name!r} of type {about.foreign[name]}" for name in columns.values() if name in about.foreign]
        if foreign:
            raise SchemaError(f"{step.name} cannot look up by column {foreign[0]}; cast it in compute(...)")
        stream = pa.schema([pa.field(name, kinds[column]) for name, column in columns.items()])
        prepared = prepare(
            replace(about, schema=stream, foreign={}),
            one.store,
            step.copy_to(
                EnrichSpec,
                on=on,
                as_of=None if step.as_of is None else names.time_column(one.number),
                memory=one.memory,
                master_version=one.version,
                hot_keys=one.hot_keys,
                transport="keys",
                tasks_per_host=tasks,
                on_miss="null",  # what becomes of a miss, and how many there may be, is the pipeline's affair
                min_match_rate=0.0,
            ),
        )
        plan = prepared.plan
        given = tuple(step.new_name(name) for name in plan.names)
        there = [name for name in given if name in kinds]
        if there:
            raise SchemaError(f"{step.name}: there is a column {there[0]!r} already; give the new one another name")
        kinds |= {new: spark_arrow(plan.output.field(old).type) for new, old in zip(given, plan.names, strict=True)}
        if step.on_miss in ("hold", "infer"):
            beside |= columns  # held rows and members that are made need to know what was asked for
        asked.append(
            CrossingLookup.of(
                prepared,
                tuple(columns.values()),
                given,
                names.status_column(one.number),
                leaves=step.leaves,
                unless_given_up=step.on_miss == "hold" and step.then == "null",
                refuses_null=step.on_null == "quarantine",
            )
        )
    stays = F.expr(_GIVEN_UP) if any(one.unless_given_up for one in asked) else None
    found = look_up_all(frame, asked, F.col(names.ROUTE).isNull(), stays, names.carrier_column(lookups[0].number))
    if beside:
        found = found.withColumns({name: F.col(quoted(column)) for name, column in beside.items()})
    return leave_by(found, [departure for one in lookups for departure in _departures(one)])


def _departures(one: PlacedLookup) -> list[Departure]:
    from pyspark.sql import functions as F

    step, missed = one.step, f"NOT {names.status_column(one.number)}"
    found: list[Departure] = []
    if step.on_null == "quarantine":
        why = f"is NULL, the key of {step.name}"
        found += [(f"{quoted(name)} IS NULL", names.QUARANTINE, f"{name} {why}") for name in step.keys]
    if not step.leaves:
        return found
    keys = [F.coalesce(F.col(quoted(name)).cast("string"), F.lit("NULL")) for name in step.keys]
    reason = F.concat(F.lit(f"{step.name}: no row for "), F.concat_ws(", ", *keys))
    if step.on_miss == "hold":
        found.append((f"{missed} AND NOT {_GIVEN_UP}", f"{names.HELD}:{step.name}", reason))
    if step.on_miss != "hold" or step.then == "redirect":
        found.append((missed, _ROUTES[step.on_miss], reason))
    return found


@asks(PipelineLookupSpec)
def lookup(store: str | os.PathLike[str], spec: PipelineLookupSpec) -> Lookup:
    """Add the columns of a master store to the rows that have its key.

    ``on_miss`` says what becomes of a row without a match: "null" (loaded with NULLs, or with ``defaults``), "drop"
    (counted and gone), "fail" (the run stops), "redirect" (into the table of unmatched rows, for `semistream retry`),
    "hold" (kept until its key arrives in the master, for ``hold_for`` and ``hold_bytes`` at most, ``then`` redirected
    or loaded with NULLs) or "infer" (the store is a dimension: the member is made, and completed when its real row
    comes). ``as_of`` names the stream's column of time by which the version of a master row is chosen.
    """
    place = local_path("store", store).absolute()
    return spec.copy_to(Lookup, store=place, name=spec.name or place.name)


FORM = Form(
    "lookup",
    lambda value, directory, **settings: lookup(directory / local_path("lookup", value), **settings),
    Form.settings_of(lookup),
)
