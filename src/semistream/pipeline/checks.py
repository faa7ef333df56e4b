"""Everything that can be wrong with a declared pipeline, found before Spark starts.

Columns are followed from the source through the steps: their names always, their types as far as they are declared.
Expressions are parsed as Spark SQL, so that their syntax and the columns they use are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from semistream.errors import ArgumentError, SchemaError
from semistream.pipeline.steps import STEPS
from semistream.pipeline.steps.contract import Known, Step


def check_steps(steps: Sequence[Step], source: pa.Schema | None) -> None:
    """Raise for the first step that cannot be. Without a ``source`` schema only the steps' own columns are checked."""
    known = Known.of(source)
    for number, step in enumerate(steps):
        if not isinstance(step, Step):
            raise ArgumentError(f"step {number + 1} is {step!r}; use {', '.join(STEPS)}")
        known.number, known.last = number, number == len(steps) - 1
        step.check(known)
    lookups = [one.name for step in steps for one in step.lookups]
    twice = [name for name in lookups if lookups.count(name) > 1]
    if twice:
        raise ArgumentError(f"two lookups are named {twice[0]!r}; give one of them another name=")


def check_required(required: Sequence[str], source: pa.Schema | None) -> None:
    """Refuse required columns that are not there."""
    unknown = [] if source is None else [name for name in required if name not in source.names]
    if unknown:
        raise SchemaError(f"required={list(required)}: the source has no column {unknown[0]!r}; it has {source.names}")  # type: ignore[union-attr]
