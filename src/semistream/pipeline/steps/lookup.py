"""``lookup``: columns of a master, for the rows that have its key.

Lookups that stand side by side are done together (`crossing`), in the order that costs least (`memory`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import format_bytes
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, SemistreamError, local_path, meant
from semistream.lookup.bind import bind
from semistream.lookup.spec import LookupSpec, asks
from semistream.pipeline import columns as names
from semistream.pipeline.memory import Claim, Memory
from semistream.pipeline.staging import Route
from semistream.pipeline.steps.contract import Form, Known, Step
from semistream.pipeline.steps.spec import PipelineLookupSpec
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.layout import Layout, Schemas


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
