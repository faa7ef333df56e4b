"""What a user asks of a lookup in a pipeline: a `LookupSpec`, and what only a pipeline can do.

`lookup`, `assign_keys` and the tables of a file take their settings from these classes, so an option that every lookup
has is declared in `LookupSpec` alone. Options without ``init`` are not asked: the pipeline decides them itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from semistream.as_of import VALID_FROM, VALID_TO
from semistream.budget import parse_bytes
from semistream.errors import ArgumentError
from semistream.joins import choose_join
from semistream.lookup.spec import How, LookupSpec, Multiple
from semistream.spark.pins import refresh_seconds

# Annotations are values in this module, not texts: help() shows them.

OnMiss = Literal["null", "drop", "fail", "redirect", "hold", "infer"]
OnNull = Literal["miss", "quarantine"]
Then = Literal["redirect", "null"]
ON_MISS: tuple[OnMiss, ...] = get_args(OnMiss)


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
        rate = self.min_match_rate
        if not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ArgumentError(f"min_match_rate={rate!r} must be between 0 and 1, for example 0.95")


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
        self._set("hold_bytes", parse_bytes(self.hold_bytes))
        seconds_of(self.hold_for, "hold_for")

    @property
    def hold_seconds(self) -> float:
        return seconds_of(self.hold_for, "hold_for")

    def new_name(self, column: str) -> str:
        return (self.rename or {}).get(column, column)


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
