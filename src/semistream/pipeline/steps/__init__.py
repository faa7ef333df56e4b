"""The steps of a pipeline, a file each; `STEPS` are their forms in a file, by their words.

What is wrong is found before Spark starts: columns are followed through the steps, names always, types if declared.
"""

from collections.abc import Sequence

import pyarrow as pa

from semistream.errors import ArgumentError
from semistream.pipeline.steps import assign_keys, compute, deduplicate, keep, lookup, select
from semistream.pipeline.steps.contract import Known, Step

_ALL = (lookup.FORM, assign_keys.FORM, compute.FORM, keep.FORM, deduplicate.FORM, select.FORM)
STEPS = {form.word: form for form in _ALL}


def check_steps(steps: Sequence[Step], source: pa.Schema | None) -> None:
    """Raise for the first step that cannot be. Without a ``source`` schema only the steps' own columns are checked."""
    columns = {item.name: item.type for item in source or ()}
    known = Known(columns, None if source is None else frozenset(columns))
    for number, step in enumerate(steps):
        if not isinstance(step, Step):
            raise ArgumentError(f"step {number + 1} is {step!r}; use {', '.join(STEPS)}")
        known.number, known.last = number, number == len(steps) - 1
        step.check(known)
    lookups = [one.name for step in steps for one in step.lookups]
    twice = [name for name in lookups if lookups.count(name) > 1]
    if twice:
        raise ArgumentError(f"two lookups are named {twice[0]!r}; give one of them another name=")
