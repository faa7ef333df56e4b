"""``assign_keys``: the warehouse's key of a member in place of the source's; a lookup in a dimension."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, local_path
from semistream.lookup.spec import key_mapping
from semistream.pipeline.steps.contract import Form
from semistream.pipeline.steps.lookup import Lookup


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


FORM = Form(
    "assign_keys",
    lambda value, directory, **settings: assign_keys(directory / local_path("assign_keys", value), **settings),
    Form.settings_of(assign_keys),
)
