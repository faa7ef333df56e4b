"""semistream on Spark: `enrich` a DataFrame from a master store, watch it with `Metrics`, ask it to `explain`."""

from semistream.spark.enrich import enrich, explain
from semistream.spark.metrics import Metrics

__all__ = ["Metrics", "enrich", "explain"]
