"""``Shed``: how a stream that is too fast is relieved, and where the rows go that must wait; the strategies by name."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError, choose, local_path
from semistream.shedding.cluster_sample import ClusterSample
from semistream.shedding.keep_w import KeepW
from semistream.shedding.sample_w import SampleW
from semistream.shedding.strategy import Strategy
from semistream.shedding.topw import TopW

STRATEGIES: dict[str, type[Strategy]] = {kind.name: kind for kind in (KeepW, SampleW, TopW, ClusterSample)}
_SOMEWHERE = (
    "rows that are shed must wait somewhere; give to= a directory, and load them from there with `semistream reconcile`"
)


@dataclass(frozen=True)
class Shed:
    """Settings of load shedding, for the ``shed=`` of `join`, `enrich` and `Pipeline`.

    ``strategy`` chooses the rows that are kept: one of `semistream.shedding.STRATEGIES`. ``max_rows_per_second`` is
    what the join gets at most; without it the join's own measured rate decides. ``to`` is the
    directory of the rows that are shed: they are written there before the results of their interval leave, and
    ``semistream reconcile`` loads them later; a pipeline has a table for them and needs none. Strategies that sample
    add the column ``weight_column`` to the output. ``clock`` tells seconds, for tests.

    >>> Shed("topw", max_rows_per_second=50_000, to="/data/shed").strategy
    'topw'
    """

    strategy: str
    max_rows_per_second: float | None = None
    to: str | os.PathLike[str] | None = None
    seed: int = 0
    weight_column: str = "_weight"
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    def __post_init__(self) -> None:
        choose("strategy", self.strategy, tuple(STRATEGIES))
        rate = self.max_rows_per_second
        if rate is not None and not (isinstance(rate, int | float) and rate is not True and 0 < rate < math.inf):
            raise ArgumentError(f"max_rows_per_second={rate!r} must be a number above 0, for example 50_000")
        if self.to is not None:
            if not isinstance(self.to, str | os.PathLike) or not str(self.to):
                raise ArgumentError(f"to={self.to!r}: {_SOMEWHERE}")
            place = local_path("to", self.to)
            if place.exists() and not place.is_dir():
                raise ArgumentError(f"to={str(self.to)!r} is a file; give a directory")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ArgumentError(f"seed={self.seed!r} must be a whole number, 0 or more")
        if not isinstance(self.weight_column, str) or not self.weight_column:
            raise ArgumentError(f"weight_column={self.weight_column!r} must be the name of a new column")

    @property
    def kind(self) -> type[Strategy]:
        return STRATEGIES[self.strategy]

    @property
    def directory(self) -> Path:
        """Where the rows go."""
        assert self.to is not None
        return Path(self.to)

    @property
    def weight(self) -> str | None:
        """The name of the weights' column, if there is one."""
        return self.weight_column if self.kind.samples else None

    def widened(self, stream: pa.Schema, *, ignore_case: bool = False) -> pa.Schema:
        """The stream's columns as the join sees them: with the weight, where there is one."""
        if self.weight is None:
            return stream
        folded = str.lower if ignore_case else str
        if folded(self.weight) in map(folded, stream.names):
            raise SchemaError(
                f"the stream has a column {self.weight!r} already, the name of the weights of {self.strategy!r}; "
                "give Shed(..., weight_column=...) another name"
            )
        return stream.append(pa.field(self.weight, pa.float64(), nullable=False))

    def check_how(self, how: str) -> None:
        """Refuse what the strategy cannot choose for."""
        if how == "anti" and self.kind.needs_counts:
            raise ArgumentError(
                f"strategy={self.strategy!r} chooses rows by their matches, and how='anti' returns those without; "
                "use 'keep_w' or 'sample_w'"
            )


def checked(shed: object, *, own_place: bool = True) -> Shed:
    """A `Shed`, or an error that says what one is; with a place of its own for the rows, or without."""
    if not isinstance(shed, Shed):
        to = ", to='shed'" if own_place else ""
        raise ArgumentError(
            f"shed={shed!r} must be a semistream.Shed, for example Shed('topw', max_rows_per_second=50_000{to})"
        )
    if own_place and shed.to is None:
        raise ArgumentError(f"to={shed.to!r}: {_SOMEWHERE}")
    if not own_place and shed.to is not None:
        raise ArgumentError(f"to={str(shed.to)!r}: a pipeline keeps shed rows in a table of its own; leave to= out")
    return shed
