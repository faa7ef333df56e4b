"""``assign_keys``: the warehouse's key of a member in place of the source's; a lookup in a dimension."""

from __future__ import annotations

import os

from semistream.dimensions.dimension import Dimension
from semistream.errors import local_path
from semistream.lookup.spec import asks
from semistream.pipeline.steps.contract import Form
from semistream.pipeline.steps.lookup import Lookup
from semistream.pipeline.steps.spec import AssignKeysSpec


@asks(AssignKeysSpec)
def assign_keys(dimension: str | os.PathLike[str], spec: AssignKeysSpec) -> Lookup:
    """Replace a source's key by the warehouse's: the surrogate key of its member in a dimension.

    The key goes into the column ``into`` (by default as the dimension calls it), with further ``columns`` of the
    dimension. A row without a member gets ``unknown_key``; with ``infer_members`` the member is made instead, and
    completed when its real row comes. A row whose key is NULL gets ``unknown_key``, unless ``on_null``
    puts it into quarantine.
    """
    place = local_path("dimension", dimension).absolute()
    surrogate = Dimension.open(place).shape.surrogate
    return spec.copy_to(
        Lookup,
        store=place,
        name=spec.name or place.name,
        columns=(surrogate, *(spec.columns or ())),
        rename=None if spec.into is None else {surrogate: spec.into},
        on_miss="infer" if spec.infer_members else "null",
        defaults=None if spec.infer_members else {surrogate: spec.unknown_key},
    )


FORM = Form(
    "assign_keys",
    lambda value, directory, **settings: assign_keys(directory / local_path("assign_keys", value), **settings),
    Form.settings_of(assign_keys),
)
