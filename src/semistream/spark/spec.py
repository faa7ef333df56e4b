"""What a user asks of one enrichment on Spark: a `LookupSpec`, and what only Spark's tasks can do."""

from dataclasses import dataclass
from typing import Literal, get_args

from semistream.errors import ArgumentError
from semistream.lookup.spec import LookupSpec
from semistream.shedding import Shed
from semistream.spark.metrics import Metrics
from semistream.spark.pins import refresh_seconds

OnMiss = Literal["null", "drop", "fail"]
Transport = Literal["auto", "rows", "keys"]
_OF_PIPELINES = ("redirect", "hold", "infer")


def check_rate(name: str, rate: object, usual: float) -> None:
    """Refuse a share that is none; ``usual`` is an example."""
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ArgumentError(f"{name}={rate!r} must be between 0 and 1, for example {usual}")


@dataclass(frozen=True, kw_only=True)
class EnrichSpec(LookupSpec):
    """One enrichment, as it is asked for; see `semistream.spark.enrich` for what the options mean."""

    on_miss: OnMiss = "null"
    min_match_rate: float = 0.0
    min_match_rows: int = 100
    refresh: str = "every_batch"
    master_version: int | str = "latest"
    transport: Transport = "auto"
    metrics: Metrics | None = None
    tasks_per_host: int | None = None
    direct: bool = False
    shed: Shed | None = None

    def __post_init__(self) -> None:
        if self.on_miss in _OF_PIPELINES:
            raise ArgumentError(
                f"on_miss={self.on_miss!r} is for steps of a pipeline (semistream.pipeline.lookup); use one of "
                f"{', '.join(map(repr, get_args(OnMiss)))}"
            )
        super().__post_init__()
        if self.on_miss == "drop":
            self._drop()
        check_rate("min_match_rate", self.min_match_rate, 0.95)
        tasks = 1 if self.tasks_per_host is None else self.tasks_per_host
        for name, count in (("min_match_rows", self.min_match_rows), ("tasks_per_host", tasks)):
            if not isinstance(count, int) or count < 1:
                raise ArgumentError(f"{name}={count!r} must be at least 1")
        refresh_seconds(self.refresh)
        version = self.master_version
        if version != "latest" and (isinstance(version, bool) or not isinstance(version, int)):
            raise ArgumentError(f"master_version={version!r} is not known; use 'latest' or the number of a version")
        if self.metrics is not None and not isinstance(self.metrics, Metrics):
            raise ArgumentError(f"metrics={self.metrics!r} is not a semistream.spark.Metrics")

    def _drop(self) -> None:
        """Rows without a match leave: what ``how="inner"`` says."""
        if self.how not in ("left", "inner"):
            raise ArgumentError(
                f"on_miss='drop' does not go with how={self.how!r}; it drops rows that how='left' would keep"
            )
        if self.defaults:
            raise ArgumentError(
                f"on_miss='drop' drops the rows that defaults={self.defaults} would fill; leave one out"
            )
        if self.status is not None:
            raise ArgumentError(f"on_miss='drop' drops the rows that status={self.status!r} would mark; leave one out")
        self._set("how", "inner")
