"""The near-real-time warehouse: a source, steps, master data and a warehouse, declared once and run for good.

>>> from semistream.pipeline import Pipeline, compute, lookup, source
"""

from semistream.errors import PipelineFileError
from semistream.pipeline.decision import Decision
from semistream.pipeline.file import load
from semistream.pipeline.pipeline import Pipeline
from semistream.pipeline.running import Running
from semistream.pipeline.sources import Source, source
from semistream.pipeline.steps import Step, assign_keys, compute, deduplicate, keep, lookup, select
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
