"""``lookup``: columns of a master, for the rows that have its key; what steps are asked that look up.

`lookup`, `assign_keys` and the tables of a file take their settings from these classes; options without ``init`` are
not asked, the pipeline decides them. Lookups that stand side by side are done together (`layout.Layout.look_up`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from semistream.budget import check_bytes, format_bytes, parse_bytes
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, SemistreamError, local_path, meant
from semistream.joins import choose_join
from semistream.lookup.bind import bind
from semistream.lookup.spec import How, LookupSpec, asks
from semistream.pipeline import routes as names
from semistream.pipeline.memory import Claim, Memory
from semistream.pipeline.routes import Departure
from semistream.pipeline.staging import Route
from semistream.pipeline.steps.contract import Known, Step, StepForm
from semistream.spark.frames import quoted
from semistream.spark.pins import refresh_seconds
from semistream.spark.spec import check_rate
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.layout import Layout, Schemas


OnMiss = Literal["null", "drop", "fail", "redirect", "hold", "infer"]
OnNull = Literal["miss", "quarantine"]
Then = Literal["redirect", "null"]

# Of a row without a match; one that is held goes there when it has waited in vain, if it is not loaded then.
_ROUTES = {"drop": names.DROPPED, "fail": names.FAILED, "redirect": names.UNMATCHED, "hold": names.UNMATCHED}
GIVEN_UP = f"coalesce({names.EXPIRED}, false)"  # of a row that was held: it waited in vain


def seconds_of(time: str, name: str) -> float:
    """ "2 hours" in seconds; ``name`` is the setting that says so."""
    try:
        found = refresh_seconds(time)
    except ArgumentError:
        found = None
    if not found:
        raise ArgumentError(f"{name}={time!r} is no length of time; give one such as '2 hours'")
    return found


@dataclass(frozen=True, kw_only=True)
class StepSpec(LookupSpec):
    """What all steps that look up are asked."""

    how: How = field(default="left", init=False)  # every row stays in the frame; `on_miss` says where it goes
    suffix: str | None = field(default=None, init=False)  # a new column has a name of its own, by `rename` or `into`
    status: str | None = field(default=None, init=False)  # whether a row matched is known anyway
    allow_empty: bool = field(default=True, init=False)  # a master may still be empty when a stream begins
    hot_keys: str | None = field(default=None, init=False)  # kept in the pipeline's state
    memory: int | str | None = None  # type: ignore[assignment] # a share of the pipeline's, unless it is said here
    name: str = ""
    on_null: OnNull = "miss"
    min_match_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("algorithm", choose_join("algorithm", self.algorithm, "auto"))
        check_rate("min_match_rate", self.min_match_rate, 0.95)
        if self.memory is not None:
            check_bytes(self.memory)


@dataclass(frozen=True, kw_only=True)
class PipelineLookupSpec(StepSpec):
    """What `semistream.pipeline.lookup` is asked; see there for what the options mean."""

    rename: Mapping[str, str] | None = None
    on_miss: OnMiss = "null"
    hold_for: str = "1 day"
    hold_bytes: int | str = "1GB"
    then: Then = "redirect"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.defaults and self.on_miss != "null" and not (self.on_miss == "hold" and self.then == "null"):
            raise ArgumentError(
                f"defaults fill rows without a match, which on_miss={self.on_miss!r} does not load; leave one out"
            )
        if self.as_of is not None and self.on_miss == "infer":
            raise ArgumentError(
                "on_miss='infer' makes members of no time; use on_miss='hold' or 'redirect' with as_of="
            )
        self._set("rename", dict(self.rename or {}))
        self._set("hold_bytes", parse_bytes(self.hold_bytes, name="hold_bytes"))
        seconds_of(self.hold_for, "hold_for")

    @property
    def hold_seconds(self) -> float:
        return seconds_of(self.hold_for, "hold_for")

    def new_name(self, column: str) -> str:
        return (self.rename or {}).get(column, column)


@dataclass(frozen=True, kw_only=True)
class Lookup(PipelineLookupSpec, Step):
    """Add columns of a master to the rows that have its key."""

    store: Path
    unknown_key: int | None = None  # of a dimension: the surrogate key of rows without a member

    @property
    def leaves(self) -> bool:
        """Does a row without a match go another way than into the table?"""
        return self.on_miss in _ROUTES

    @property
    def is_dimension(self) -> bool:
        """Does it give surrogate keys, of members that it may have to make?"""
        return self.on_miss == "infer" or self.unknown_key is not None

    @property
    def inputs(self) -> list[str]:
        return [*self.keys, *([self.as_of] if self.as_of is not None else [])]

    @property
    def redirects(self) -> bool:
        return self.on_miss == "redirect" or (self.on_miss == "hold" and self.then == "redirect")

    @property
    def in_driver(self) -> bool:
        return self.on_miss in ("hold", "infer")

    @property
    def lookups(self) -> tuple["Lookup", ...]:
        return (self,)

    def claim(self, seen: "SeenKeys | None") -> Claim:
        store = MasterStore.open(self.store)
        return Claim(self.name, store, self.columns, self.algorithm, self.memory, grows=self.on_miss == "infer")

    def describe(self, memory: Memory) -> list[str]:
        mine = memory[self.name]
        how = f"{mine.algorithm or 'to be chosen'} in {format_bytes(mine.memory_bytes)}"
        return [f"lookup {self.name} on {', '.join(self.keys)}: {how}, misses: {self.on_miss}"]

    def routes(self, number: int, layout: "Layout", schemas: "Schemas", staging: str, started: float) -> list[Route]:
        """Rows that are held, with the key that they wait for."""
        if self.on_miss != "hold":
            return []
        asked = names.asked_columns(number, len(self.keys))
        kept = {name: name for name in layout.carried} | {names.held_key(n): name for n, name in enumerate(asked)}
        if self.as_of is not None:
            kept[names.HELD_TIME] = names.time_column(number)
        fields = [pa.field(name, schemas.hidden[column]) for name, column in kept.items()]
        schema = pa.schema([*fields, pa.field(names.SINCE, pa.float64())])
        route = f"{names.HELD}:{self.name}"
        return [Route(route, (*kept.values(), names.SINCE), schema, staging, {names.SINCE: started})]

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
        wanted = [("columns", name) for name in (*chosen, *(self.rename or {}))]
        if self.as_of is not None:
            wanted += [("valid_from", self.valid_from), ("valid_to", self.valid_to)]
        for word, name in wanted:
            if name not in store.schema.names:
                like = meant(name, store.schema.names)
                raise known.error(word, f"{self.store} has no column {name!r}; it has {store.schema.names}{like}")
        if known.several and known.source and self.on_miss in ("hold", "redirect"):
            given = [name for name in self.inputs if name not in known.source]
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
        try:
            bind(LookupSpec(on=self.keys, columns=self.columns or (), suffix="_master"), stream, store)
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

    def departures(self, number: int) -> list[Departure]:
        """Who leaves when it has been looked up as the number-th self."""
        from pyspark.sql import functions as F

        missed = f"NOT {names.status_column(number)}"
        found: list[Departure] = []
        if self.on_null == "quarantine":
            why = f"is NULL, the key of {self.name}"
            found += [(f"{quoted(name)} IS NULL", names.QUARANTINE, f"{name} {why}") for name in self.keys]
        if not self.leaves:
            return found
        keys = [F.coalesce(F.col(quoted(name)).cast("string"), F.lit("NULL")) for name in self.keys]
        reason = F.concat(F.lit(f"{self.name}: no row for "), F.concat_ws(", ", *keys))
        if self.on_miss == "hold":
            found.append((f"{missed} AND NOT {GIVEN_UP}", f"{names.HELD}:{self.name}", reason))
        if self.on_miss != "hold" or self.then == "redirect":
            found.append((missed, _ROUTES[self.on_miss], reason))
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


FORM = StepForm(
    "lookup",
    lambda value, directory, **settings: lookup(directory / local_path("lookup", value), **settings),
    StepForm.settings_of(lookup),
)
