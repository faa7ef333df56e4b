"""The steps of a pipeline, a file each. `STEPS` are their forms in a file, by their words."""

from semistream.pipeline.steps import assign_keys, compute, deduplicate, keep, lookup, select

_ALL = (
    lookup.FORM,
    assign_keys.FORM,
    compute.FORM,
    keep.FORM,
    deduplicate.FORM,
    select.FORM,
)
STEPS = {form.word: form for form in _ALL}
