"""What a pipeline does to its rows, as a user declares it: plain values, checked on their own.

How a step changes a DataFrame is in `frames`, in which order lookups come and what memory each gets in `order`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semistream.budget import parse_bytes
from semistream.errors import ArgumentError, choose, local_path
from semistream.joins import JOINS
from semistream.lookup.spec import Multiple, key_mapping
from semistream.spark.pins import refresh_seconds

ON_MISS = ("null", "drop", "fail", "redirect", "hold", "infer")
ON_NULL = ("miss", "quarantine")
THEN = ("redirect", "null")


@dataclass(frozen=True)
class Lookup:
    """Add columns of a master to the rows that have its key."""

    store: Path
    on: dict[str, str]
    columns: tuple[str, ...] | None = None
    rename: dict[str, str] = field(default_factory=dict)
    name: str = ""
    on_miss: str = "null"
    on_null: str = "miss"
    defaults: dict[str, Any] = field(default_factory=dict)
    as_of: str | None = None
    valid_from: str = "valid_from"
    valid_to: str = "valid_to"
    multiple: Multiple = "all"
    memory: str | None = None
    algorithm: str = "auto"
    min_match_rate: float = 0.0
    hold_for: str = "1 day"
    hold_bytes: int = 1 << 30
    then: str = "redirect"
    unknown_key: int | None = None  # of a dimension: the surrogate key of rows without a member

    @property
    def leaves(self) -> bool:
        """Does a row without a match go another way than into the table?"""
        return self.on_miss in ("drop", "fail", "redirect", "hold")

    @property
    def is_dimension(self) -> bool:
        """Does it give surrogate keys, of members that it may have to make?"""
        return self.on_miss == "infer" or self.unknown_key is not None


@dataclass(frozen=True)
class Compute:
    """Add columns computed by Spark SQL expressions."""

    columns: dict[str, str]


@dataclass(frozen=True)
class Keep:
    """Keep the rows for which a Spark SQL condition holds; the others are counted and gone."""

    condition: str


@dataclass(frozen=True)
class Deduplicate:
    """Let the first row of a business key through, of all that ever came."""

    key: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    memory: str | None = None


@dataclass(frozen=True)
class Select:
    """The columns of the table, in this order; by default all that there are."""

    columns: dict[str, str]  # name in the table: column


Step = Lookup | Compute | Keep | Deduplicate | Select


def lookup(
    store: str | os.PathLike[str],
    *,
    on: str | Sequence[str] | Mapping[str, str],
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    name: str | None = None,
    on_miss: str = "null",
    on_null: str = "miss",
    defaults: Mapping[str, Any] | None = None,
    as_of: str | None = None,
    valid_from: str = "valid_from",
    valid_to: str = "valid_to",
    multiple: Multiple = "all",
    memory: str | None = None,
    algorithm: str = "auto",
    min_match_rate: float = 0.0,
    hold_for: str = "1 day",
    hold_bytes: int | str = "1GB",
    then: str = "redirect",
) -> Lookup:
    """Add the columns of a master store to the rows that have its key.

    ``on_miss`` says what becomes of a row without a match: "null" (loaded with NULLs, or with ``defaults``), "drop"
    (counted and gone), "fail" (the run stops), "redirect" (into the table of unmatched rows, for `semistream retry`),
    "hold" (kept until its key arrives in the master, for ``hold_for`` and ``hold_bytes`` at most, ``then`` redirected
    or loaded with NULLs) or "infer" (the store is a dimension: the member is made, and completed when its real row
    comes). ``as_of`` names the stream's column of time by which the version of a master row is chosen.
    """
    choose("on_miss", on_miss, ON_MISS)
    choose("on_null", on_null, ON_NULL)
    choose("then", then, THEN)
    choose("algorithm", algorithm, ("auto", *JOINS))
    if isinstance(columns, str):
        raise ArgumentError(f"columns={columns!r} must be a list of names, for example [{columns!r}]")
    if not isinstance(min_match_rate, int | float) or not 0 <= min_match_rate <= 1:
        raise ArgumentError(f"min_match_rate={min_match_rate!r} must be between 0 and 1, for example 0.95")
    if defaults and on_miss != "null" and not (on_miss == "hold" and then == "null"):
        raise ArgumentError(
            f"defaults fill rows without a match, which on_miss={on_miss!r} does not load; leave one out"
        )
    if as_of is not None and on_miss == "infer":
        raise ArgumentError("on_miss='infer' makes members of no time; use on_miss='hold' or 'redirect' with as_of=")
    seconds_of(hold_for, "hold_for")
    place = local_path("store", store).absolute()
    return Lookup(
        store=place,
        on=key_mapping(on),
        columns=None if columns is None else tuple(columns),
        rename=dict(rename or {}),
        name=name or place.name,
        on_miss=on_miss,
        on_null=on_null,
        defaults=dict(defaults or {}),
        as_of=as_of,
        valid_from=valid_from,
        valid_to=valid_to,
        multiple=multiple,
        memory=memory,
        algorithm=algorithm,
        min_match_rate=float(min_match_rate),
        hold_for=hold_for,
        hold_bytes=parse_bytes(hold_bytes),
        then=then,
    )


def assign_keys(
    dimension: str | os.PathLike[str],
    *,
    on: str | Sequence[str] | Mapping[str, str],
    into: str | None = None,
    columns: Sequence[str] = (),
    name: str | None = None,
    unknown_key: int = -1,
    infer_members: bool = False,
    as_of: str | None = None,
    memory: str | None = None,
) -> Lookup:
    """Replace a source's key by the warehouse's: the surrogate key of its member in a dimension.

    The key goes into the column ``into`` (by default as the dimension calls it), with further ``columns`` of the
    dimension. A row without a member gets ``unknown_key``; with ``infer_members`` the member is made instead, and
    completed when its real row comes. A row whose key is NULL always gets ``unknown_key``.
    """
    from semistream.dimensions.dimension import Dimension

    if isinstance(unknown_key, bool) or not isinstance(unknown_key, int):
        raise ArgumentError(f"unknown_key={unknown_key!r} must be a whole number, such as -1")
    if infer_members and as_of is not None:
        raise ArgumentError("infer_members=True makes members of no time; leave as_of= or infer_members= out")
    place = local_path("dimension", dimension).absolute()
    surrogate = Dimension.open(place).shape.surrogate
    return Lookup(
        store=place,
        on=key_mapping(on),
        columns=(surrogate, *columns),
        rename={} if into is None else {surrogate: into},
        name=name or place.name,
        on_miss="infer" if infer_members else "null",
        defaults={} if infer_members else {surrogate: unknown_key},
        as_of=as_of,
        memory=memory,
        unknown_key=unknown_key,
    )


def compute(**columns: str) -> Compute:
    """Add columns: ``compute(revenue="quantity * price")``, in Spark SQL."""
    for name, expression in columns.items():
        if not isinstance(expression, str) or not expression.strip():
            raise ArgumentError(
                f"compute({name}={expression!r}): give an expression in SQL, such as 'quantity * price'"
            )
    if not columns:
        raise ArgumentError("compute() adds no column; name some, as in compute(revenue='quantity * price')")
    return Compute(dict(columns))


def keep(condition: str) -> Keep:
    """Keep the rows for which a condition in Spark SQL holds: ``keep("quantity > 0")``."""
    if not isinstance(condition, str) or not condition.strip():
        raise ArgumentError(f"keep({condition!r}): give a condition in SQL, such as 'quantity > 0'")
    return Keep(condition)


def deduplicate(*key: str, order_by: str | Sequence[str] = (), memory: str | None = None) -> Deduplicate:
    """Let only the first row of a business key through, of this batch and of all before it.

    Within a batch the first by ``order_by`` is taken (and by all other columns, so that a replay takes the same).
    """
    if not key or not all(isinstance(name, str) and name for name in key):
        raise ArgumentError(f"deduplicate{key!r}: name the columns of the business key, as in deduplicate('sale_id')")
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    return Deduplicate(key, order, memory)


def select(*columns: str, **renamed: str) -> Select:
    """The columns of the table: ``select("sale_id", "product_sk", amount="revenue")``."""
    chosen = {**{name: name for name in columns}, **renamed}
    if not chosen or len(chosen) < len(columns) + len(renamed):
        raise ArgumentError("select() must name each column of the table once")
    return Select(chosen)


def seconds_of(time: str, name: str = "time") -> float:
    """ "2 hours" in seconds."""
    try:
        found = refresh_seconds(time)
    except ArgumentError:
        found = None
    if not found:
        raise ArgumentError(f"{name}={time!r} is no length of time; give one such as '2 hours'")
    return found
