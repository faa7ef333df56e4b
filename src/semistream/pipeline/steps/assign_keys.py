"""``assign_keys``: the warehouse's key of a member in place of the source's; a lookup in a dimension."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from semistream.as_of import VALID_FROM, VALID_TO
from semistream.dimensions.dimension import Dimension
from semistream.errors import ArgumentError, local_path
from semistream.lookup.spec import Multiple, asks
from semistream.pipeline.steps.contract import StepForm
from semistream.pipeline.steps.lookup import Lookup, StepSpec


@dataclass(frozen=True, kw_only=True)
class AssignKeysSpec(StepSpec):
    """What `semistream.pipeline.assign_keys` is asked; the dimension decides the rest."""

    columns: Sequence[str] | None = ()
    defaults: Mapping[str, object] | None = field(default=None, init=False)  # `unknown_key` is what it fills in
    valid_from: str = field(default=VALID_FROM, init=False)
    valid_to: str = field(default=VALID_TO, init=False)
    multiple: Multiple = field(default="all", init=False)
    into: str | None = None
    unknown_key: int = -1
    infer_members: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.unknown_key, bool) or not isinstance(self.unknown_key, int):
            raise ArgumentError(f"unknown_key={self.unknown_key!r} must be a whole number, such as -1")
        if self.infer_members and self.as_of is not None:
            raise ArgumentError("infer_members=True makes members of no time; leave as_of= or infer_members= out")


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


FORM = StepForm(
    "assign_keys",
    lambda value, directory, **settings: assign_keys(directory / local_path("assign_keys", value), **settings),
    StepForm.settings_of(assign_keys),
)
