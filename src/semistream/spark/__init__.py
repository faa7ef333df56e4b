"""semistream on Spark: `enrich` a DataFrame from a master store, watch it with `Metrics`, ask it to `explain`.

`register_sources` makes the workloads readable as tables and streams.
"""

from semistream.spark.enrich import enrich, explain
from semistream.spark.metrics import Metrics
from semistream.spark.sources import register_sources

__all__ = ["Metrics", "enrich", "explain", "register_sources"]
