"""The near-real-time warehouse: a source, steps, master data and a warehouse, declared once and run for good.

>>> from semistream.pipeline import Pipeline, compute, lookup, source
"""

from semistream.errors import PipelineFileError
from semistream.pipeline.decision import Decision
from semistream.pipeline.file import load
from semistream.pipeline.pipeline import Pipeline
from semistream.pipeline.running import Running
from semistream.pipeline.sources import Source, source
from semistream.pipeline.steps.assign_keys import assign_keys
from semistream.pipeline.steps.compute import compute
from semistream.pipeline.steps.contract import Step
from semistream.pipeline.steps.deduplicate import deduplicate
from semistream.pipeline.steps.keep import keep
from semistream.pipeline.steps.lookup import lookup
from semistream.pipeline.steps.select import select
from semistream.pipeline.store_sink import StoreSink

__all__ = [
    "Decision",
    "Pipeline",
    "PipelineFileError",
    "Running",
    "Source",
    "Step",
    "StoreSink",
    "assign_keys",
    "compute",
    "deduplicate",
    "keep",
    "load",
    "lookup",
    "select",
    "source",
]
