"""What `enrich` is asked for, checked against stream and master, and made into an operator for the workers."""

import hashlib
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.budget import parse_bytes
from semistream.errors import ArgumentError, SchemaError
from semistream.joins.contract import Join
from semistream.joins.papers.waiting_join import WaitingJoin
from semistream.joins.sizes import stream_row_bytes
from semistream.joins.sweep.hot import check_replaceable
from semistream.lookup.bind import LookupPlan, bind
from semistream.lookup.choose import SPARK_CANDIDATES, Choice, choose_algorithm
from semistream.lookup.run import open_store
from semistream.shedding.log import check_storable
from semistream.shedding.settings import checked
from semistream.shedding.shedder import memory_of
from semistream.spark.area import new_name
from semistream.spark.frames import arrow_schema, context_of
from semistream.spark.operator import Operator
from semistream.spark.pins import pin_service
from semistream.spark.spec import EnrichSpec
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Bytes of the stream's other columns above which sending only the keys is quicker although a key's rows come back as a
# list that Spark must unfold; docs/decisions/0004-spark-cache.md.
LISTS_ABOVE_BYTES = 48
_sessions: dict[str, str] = {}  # names of directories, by the application's


@dataclass(frozen=True)
class FrameFacts:
    """What is known of the DataFrame that is joined."""

    df: "DataFrame"
    schema: pa.Schema
    foreign: dict[str, str]  # columns that Arrow cannot carry, with their types
    ignore_case: bool
    tasks: int  # that may run at once on one host
    application: str  # the name of its directories on all hosts

    @staticmethod
    def of(df: "DataFrame") -> "FrameFacts":
        schema, foreign = arrow_schema(df)
        conf, context = df.sparkSession.conf, context_of(df.sparkSession)
        ignore_case = str(conf.get("spark.sql.caseSensitive", "false")).lower() != "true"
        cores = conf.get("spark.executor.cores", None)  # of an executor, as far as they are known
        if cores and not str(conf.get("spark.master", "")).startswith("local"):
            tasks = int(str(cores))
        else:
            tasks = int(context.defaultParallelism) if context is not None else os.cpu_count() or 1
        name = "connect" if context is None else str(context.applicationId)
        return FrameFacts(df, schema, foreign, ignore_case, max(1, tasks), _sessions.setdefault(name, new_name(name)))


@dataclass(frozen=True)
class Prepared:
    """An enrichment that can be run."""

    operator: Operator
    plan: LookupPlan
    choice: Choice
    transport: str
    why_transport: str
    many: bool  # may a row have several matches?
    store: MasterStore


def prepare(about: FrameFacts, store: MasterStore | str | os.PathLike[str], spec: EnrichSpec) -> Prepared:
    """Everything that can be checked is checked here; nothing of Spark runs."""
    opened = open_store(_at_version(store, spec.master_version), allow_empty=spec.allow_empty)
    shed, stream, shed_bytes, counts_bytes = spec.shed, about.schema, 0, 0
    memory_bytes, tasks = parse_bytes(spec.memory, whole=opened.bytes), spec.tasks_per_host or about.tasks
    if shed is not None:
        _check_shed(about, spec)
        stream = shed.widened(stream, ignore_case=about.ignore_case)
        shed_bytes, counts_bytes, _ = memory_of(shed, memory_bytes, tasks)
        memory_bytes -= shed_bytes
        shed = replace(shed, to=shed.directory.resolve(), clock=time.monotonic)  # the same place for all tasks
    plan = bind(spec, stream, opened, ignore_case=about.ignore_case)
    if spec.hot_keys is not None:
        check_replaceable(spec.hot_keys)
    read = plan.reads(opened)
    given = memory_bytes + shed_bytes
    choice = choose_algorithm(
        spec.algorithm, read, plan, memory_bytes, given=given, copies=tasks, candidates=SPARK_CANDIDATES
    )
    many = plan.how in ("left", "inner") and spec.multiple == "all" and not opened.unique
    transport, why = _choose_transport(spec, plan, about.foreign, choice.join, many=many)
    path, fixed, direct = str(opened.path.resolve()), spec.master_version != "latest", spec.direct or opened.direct
    # What the cached rows depend on. A new version, or enrich called again for every batch, finds the same cache.
    algorithm = choice.join.name
    asked = (path, spec.keys, plan.how, plan.columns, plan.as_of, memory_bytes, algorithm, tasks, direct, transport)
    shipped = replace(spec, columns=plan.columns, metrics=None, direct=direct, shed=shed)
    operator = Operator(
        spec=shipped,
        store=path,
        columns={column: str(plan.master.field(column).type) for column in plan.columns},
        names=plan.names,
        memory_bytes=memory_bytes,
        algorithm=algorithm,
        planned=opened.manifest.identity,
        tasks=tasks,
        ignore_case=about.ignore_case,
        application=about.application,
        identity=_digest(asked),
        sample=_digest((asked, shipped, fixed and opened.version)),
        pinned_by=None if fixed else pin_service(about.df.sparkSession),
        shed_bytes=shed_bytes,
        counts_bytes=counts_bytes,
    )
    return Prepared(operator, plan, choice, transport, why, many, opened)


def _check_shed(about: FrameFacts, spec: EnrichSpec) -> None:
    """Refuse what cannot be shed, before the stream runs."""
    checked(spec.shed).check_how(spec.how)
    if spec.transport == "keys":
        raise ArgumentError(
            "transport='keys' does not go with shed=: whole rows must come to Python to be shed; use 'rows' or 'auto'"
        )
    if about.foreign:
        name, kind = next(iter(about.foreign.items()))
        raise SchemaError(
            f"stream column {name!r} of type {kind} cannot cross to Python, so its rows cannot be shed; cast it, or "
            "leave it out of the stream"
        )
    check_storable(about.schema)
    if spec.algorithm == "pcsrj":
        raise ArgumentError(
            "algorithm='pcsrj' shuffles the stream, and a replay might shed other rows; use another with shed="
        )
    context = context_of(about.df.sparkSession)
    # Within foreachBatch there is a query; with Spark Connect the task will find out.
    in_query = context is None or context.getLocalProperty("sql.streaming.queryId") is not None
    if not about.df.isStreaming and not in_query:
        raise ArgumentError("shed= needs a stream: a batch job is never late; leave shed= out for batch DataFrames")


def _digest(what: object) -> str:
    return hashlib.sha256(repr(what).encode()).hexdigest()[:12]


def _at_version(
    store: MasterStore | str | os.PathLike[str], version: int | str
) -> MasterStore | str | os.PathLike[str]:
    if isinstance(store, MasterStore):
        if version in ("latest", store.version):
            return store.latest() if version == "latest" else store
        store = store.path
    if isinstance(version, int) and isinstance(store, str | os.PathLike):
        return MasterStore.open(store, version)
    return store


def _choose_transport(
    spec: EnrichSpec, plan: LookupPlan, foreign: dict[str, str], join: type[Join], *, many: bool
) -> tuple[str, str]:
    transport = spec.transport
    if spec.shed is not None:
        return "rows", "rows are shed in Python"
    if foreign:
        name, kind = next(iter(foreign.items()))
        if transport == "rows":
            raise SchemaError(
                f"stream column {name!r} of type {kind} cannot cross to Python; use transport='keys' or 'auto', which "
                "leave it in the JVM"
            )
        return "keys", f"column {name!r} of type {kind} must stay in the JVM"
    if transport != "auto":
        return transport, "asked for"
    if issubclass(join, WaitingJoin):
        return "rows", f"{join.name} lets rows wait, and an answer for a block of keys would end the wait too early"
    if plan.how in ("semi", "anti"):
        return "keys", "a semi or anti join needs only the key"
    others = [field for field in plan.stream if field.name not in plan.matching_columns]
    size = stream_row_bytes(pa.schema(others)) if others else 0
    if not many or size > LISTS_ABOVE_BYTES:
        return "keys", f"the stream's other columns take about {size} bytes a row and stay in the JVM"
    return "rows", f"a row may have several matches, and the stream's other columns take only about {size} bytes"
