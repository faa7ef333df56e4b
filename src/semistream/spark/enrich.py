"""``enrich``: a streaming or batch DataFrame in, the same rows with the master's columns out.

A pure function from DataFrame to DataFrame: it works in any query, in foreachBatch and in batch jobs, and changes no
configuration. Everything that can be checked is checked here, before Spark starts.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.as_of import VALID_FROM, VALID_TO, AsOf
from semistream.budget import format_bytes, parse_bytes
from semistream.contracts import Join, JoinPlan, key_mapping
from semistream.engine import open_store
from semistream.errors import ArgumentError, SchemaError, choose
from semistream.joins._division import Division
from semistream.joins._waiting_join import WaitingJoin
from semistream.joins._window import stream_row_bytes
from semistream.joins.sweep import SweepJoin
from semistream.planner.choice import SPARK_CANDIDATES, Choice, choose_algorithm
from semistream.shedding import Shed
from semistream.spark.frames import by_keys, by_node, by_rows
from semistream.spark.metrics import Metrics
from semistream.spark.operator import CACHE_SHARE, Operator
from semistream.spark.pins import refresh_seconds
from semistream.spark.shared import remove_files
from semistream.spark.shed_plan import ShedPlan, check_shed
from semistream.stores import MasterStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRANSPORTS = ("auto", "rows", "keys")
ON_MISS = ("null", "drop", "fail")
_LATER = ("redirect", "hold", "infer")
# Bytes of the stream's other columns above which sending only the keys is quicker although a key's rows come back as a
# list that Spark must unfold; docs/decisions/0004-spark-cache.md.
LISTS_ABOVE_BYTES = 48
_sessions: dict[str, str] = {}


@dataclass(frozen=True)
class _Prepared:
    operator: Operator
    plan: JoinPlan
    choice: Choice
    transport: str
    why_transport: str
    store: MasterStore


def enrich(
    df: DataFrame,
    store: MasterStore | str | os.PathLike[str],
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "left",
    memory: int | str = "256MB",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    on_miss: str = "null",
    defaults: Mapping[str, Any] | None = None,
    min_match_rate: float = 0.0,
    min_match_rows: int = 100,
    as_of: str | None = None,
    valid_from: str = VALID_FROM,
    valid_to: str = VALID_TO,
    multiple: str = "all",
    status: str | None = None,
    refresh: str = "every_batch",
    master_version: int | str = "latest",
    transport: str = "auto",
    metrics: Metrics | None = None,
    tasks_per_host: int | None = None,
    direct: bool = False,
    allow_empty: bool = False,
    shed: Shed | None = None,
) -> DataFrame:
    """Join a streaming or batch DataFrame with a master store.

    ``memory`` is the total for all Python workers of a host together ("256MB", or "10%" of the master). ``on`` is a
    column name, several, or {stream column: master column}. ``on_miss`` says what becomes of a row without a match:
    "null" (default), "drop" or "fail"; ``defaults`` fill the master's columns of such rows. A match rate under
    ``min_match_rate`` in a task fails the batch (tasks of fewer than ``min_match_rows`` rows are judged together).
    ``as_of`` is the stream's column with a moment: of a key's rows only those match with ``valid_from`` <= moment <
    ``valid_to`` (NULL is no bound). ``multiple`` is for rows with several matches: "all" of them, the "first" in the
    store's order of the key's rows, or an "error" that names the key. ``status`` names a last column that says
    "matched" or "unmatched".
    ``refresh`` is "every_batch", "never" or a time such as "5 minutes"; a batch that is replayed reads the version it
    read before. ``shed`` relieves a join whose stream is too fast: see `semistream.Shed`.
    """
    p = _prepare(
        df,
        store,
        on=on,
        how=how,
        memory=memory,
        algorithm=algorithm,
        columns=columns,
        suffix=suffix,
        on_miss=on_miss,
        defaults=defaults,
        min_match_rate=min_match_rate,
        min_match_rows=min_match_rows,
        as_of=as_of,
        valid_from=valid_from,
        valid_to=valid_to,
        multiple=multiple,
        status=status,
        refresh=refresh,
        master_version=master_version,
        transport=transport,
        tasks_per_host=tasks_per_host,
        direct=direct,
        allow_empty=allow_empty,
        shed=shed,
    )
    if metrics is not None and not isinstance(metrics, Metrics):
        raise ArgumentError(f"metrics={metrics!r} is not a semistream.spark.Metrics")
    operator = p.operator
    if operator.algorithm == "pcsrj":  # a partition is a node: it sees its own keys, and is a cache join
        df = by_node(df, operator, p.plan)
        operator = replace(operator, algorithm="sscj")
    if p.transport == "rows":
        return by_rows(df, operator, p.plan, metrics)
    return by_keys(df, operator, p.plan, metrics, single=operator.one_match(p.store))


def explain(df: DataFrame, store: MasterStore | str | os.PathLike[str], **options: Any) -> str:
    """What `enrich` with the same arguments would do: algorithm, transport, why, budget split, predicted rate."""
    options.pop("metrics", None)
    p = _prepare(df, store, **options)
    prediction = p.choice.prediction
    lines = [
        f"enrich with {p.store.path} (version {p.store.version}, {p.store.rows:,} rows, {format_bytes(p.store.bytes)})",
        f"  algorithm   {p.choice.join.name}: {p.choice.reason}",
        f"  transport   {p.transport}: {p.why_transport}",
        f"  memory      {format_bytes(p.operator.memory_bytes)} in total a host for {p.operator.tasks} tasks at once",
        *(f"              {name:<12} {format_bytes(size)}" for name, size in _parts(p).items()),
        f"  predicted   hit ratio {prediction.hit_ratio:.2f}, {p.choice.rows_per_second:,.0f} rows/s a core",
        f"              in the join alone, {prediction.remark}",
        f"  output      {', '.join(p.plan.output.names)}",
        f"  no match    {p.operator.on_miss}; refresh {p.operator.refresh}",
    ]
    if p.plan.as_of is not None:
        lines.append(f"  as of       {p.plan.as_of}")
    if p.plan.multiple != "all":
        several = "only the first match of a row" if p.plan.multiple == "first" else "a row with two matches fails"
        lines.append(f"  multiple    {p.plan.multiple}: {several}")
    if p.operator.shed is not None:
        lines += p.operator.shed.explained()
    return "\n".join(lines)


def _parts(p: _Prepared) -> dict[str, int]:
    """How the budget is divided among all tasks of a host together."""
    if p.choice.join is not SweepJoin:
        return p.choice.prediction.parts
    tasks = p.operator.tasks
    parts = Division.of(p.store, p.plan, p.operator.memory_bytes, CACHE_SHARE, tasks)
    return {
        "index": parts.index,
        "read buffer": (parts.buffer + parts.plan) * tasks,
        "output": parts.output * tasks,
        "cache": parts.cache,
        "window": parts.window * tasks,
    }


def _prepare(
    df: DataFrame,
    store: MasterStore | str | os.PathLike[str],
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "left",
    memory: int | str = "256MB",
    algorithm: str = "auto",
    columns: Sequence[str] | None = None,
    suffix: str | None = None,
    on_miss: str = "null",
    defaults: Mapping[str, Any] | None = None,
    min_match_rate: float = 0.0,
    min_match_rows: int = 100,
    as_of: str | None = None,
    valid_from: str = VALID_FROM,
    valid_to: str = VALID_TO,
    multiple: str = "all",
    status: str | None = None,
    refresh: str = "every_batch",
    master_version: int | str = "latest",
    transport: str = "auto",
    tasks_per_host: int | None = None,
    direct: bool = False,
    allow_empty: bool = False,
    shed: Shed | None = None,
) -> _Prepared:
    choose("transport", transport, TRANSPORTS)
    _check_policies(on_miss, how, min_match_rate, min_match_rows, tasks_per_host)
    refresh_seconds(refresh)
    mapping = key_mapping(on)
    opened = open_store(_at_version(store, master_version), allow_empty=allow_empty)
    if on_miss == "drop" and how == "left":
        if defaults:
            raise ArgumentError(
                f"on_miss='drop' drops the rows that defaults={dict(defaults)} would fill; leave one out"
            )
        if status is not None:
            raise ArgumentError(f"on_miss='drop' drops the rows that status={status!r} would mark; leave one out")
        how = "inner"
    stream, foreign = arrow_schema(df)
    ignore_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() != "true"
    given = stream
    if shed is not None:
        check_shed(df, shed, given, how, algorithm, transport, foreign)
        stream, transport = shed.widened(given, ignore_case=ignore_case), "rows"
    plan = JoinPlan.make(
        stream,
        opened.schema,
        opened.codec,
        mapping,
        how,
        columns,
        suffix,
        defaults,
        ignore_case=ignore_case,
        as_of=AsOf.asked(as_of, valid_from, valid_to),
        multiple=multiple,
        status=status,
    )
    memory_bytes = parse_bytes(memory, whole=opened.bytes)
    tasks = tasks_per_host or _tasks(df)
    shed_plan = None if shed is None else ShedPlan.make(shed, given, memory_bytes, tasks)
    if shed_plan is not None:
        memory_bytes -= shed_plan.bytes
    choice = choose_algorithm(algorithm, opened, plan, memory_bytes, copies=tasks, candidates=SPARK_CANDIDATES)
    single = opened.unique or multiple != "all"
    chosen, why = _choose_transport(transport, plan, foreign, choice.join, single=single)
    why = "rows are shed in Python" if shed is not None else why
    shape: dict[str, Any] = {
        "store": str(opened.path.resolve()),
        "on": mapping,
        "how": how,
        "columns": plan.columns,
        "suffix": suffix,
        "defaults": dict(defaults or {}),
        "memory_bytes": memory_bytes,
        "algorithm": choice.join.name,
        "on_miss": on_miss,
        "min_match_rate": float(min_match_rate),
        "min_match_rows": min_match_rows,
        "refresh": refresh,
        "planned_version": opened.version,
        "fixed_version": master_version != "latest",
        "tasks": tasks,
        "ignore_case": ignore_case,
        "direct": direct or opened.direct,
        "allow_empty": allow_empty,
        "names": plan.names,
        "as_of": plan.as_of,
        "multiple": multiple,
        "status": status,
        "output_types": tuple(str(plan.output.field(name).type) for name in plan.names),
    }
    # What the cached rows depend on. A new version, or enrich called again for every batch, finds the same cache.
    same = ("store", "on", "how", "columns", "as_of", "memory_bytes", "algorithm", "tasks", "direct")
    described = json.dumps([*(shape[name] for name in same), chosen], default=str)
    identity = hashlib.sha256(described.encode()).hexdigest()[:12]
    operator = Operator(**shape, application=_application(df), identity=identity, shed=shed_plan)
    return _Prepared(operator, plan, choice, chosen, why, opened)


def _check_policies(on_miss: str, how: str, rate: float, rows: int, tasks: int | None) -> None:
    if on_miss in _LATER:
        raise ArgumentError(
            f"on_miss={on_miss!r} is planned but not there yet; use one of {', '.join(map(repr, ON_MISS))}"
        )
    choose("on_miss", on_miss, ON_MISS)
    if on_miss == "drop" and how not in ("left", "inner"):
        raise ArgumentError(f"on_miss='drop' does not go with how={how!r}; it drops rows that how='left' would keep")
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise ArgumentError(f"min_match_rate={rate!r} must be between 0 and 1, for example 0.95")
    if not isinstance(rows, int) or rows < 1:
        raise ArgumentError(f"min_match_rows={rows!r} must be at least 1")
    if tasks is not None and (not isinstance(tasks, int) or tasks < 1):
        raise ArgumentError(f"tasks_per_host={tasks!r} must be at least 1")


def _at_version(
    store: MasterStore | str | os.PathLike[str], version: int | str
) -> MasterStore | str | os.PathLike[str]:
    if version == "latest":
        return store.latest() if isinstance(store, MasterStore) else store
    if isinstance(version, bool) or not isinstance(version, int):
        raise ArgumentError(f"master_version={version!r} is not known; use 'latest' or the number of a version")
    path = store.path if isinstance(store, MasterStore) else store
    return MasterStore.open(path, version) if isinstance(path, str | os.PathLike) else path


def arrow_schema(df: DataFrame) -> tuple[pa.Schema, dict[str, str]]:
    """The stream's schema, and the columns that Arrow cannot carry with their types: these must stay in the JVM."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not hasattr(df, "mapInArrow"):
        raise ArgumentError(f"df is a {type(df).__name__}, not a Spark DataFrame")
    names = df.columns
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the stream has several columns named {', '.join(map(repr, twice))}; rename them")
    fields, foreign = [], {}
    for item in df.schema.fields:
        try:
            fields.append(to_arrow_schema(StructType([item]), timezone="UTC").field(0))
        except PySparkException:
            fields.append(pa.field(item.name, pa.null()))
            foreign[item.name] = item.dataType.simpleString()
    return pa.schema(fields), foreign


def _tasks(df: DataFrame) -> int:
    """Tasks that may run at once on one host: the cores of an executor, as far as they are known."""
    session = df.sparkSession
    try:
        configured = session.conf.get("spark.executor.cores", None)
        master = session.conf.get("spark.master", "")
        if configured and not str(master).startswith("local"):
            return max(1, int(str(configured)))
        return max(1, int(session.sparkContext.defaultParallelism))
    except Exception:  # noqa: BLE001 - Spark Connect has no context to ask
        return os.cpu_count() or 1


def _application(df: DataFrame) -> str:
    """A name for this application's files; they are removed when the driver ends."""
    try:
        name = str(df.sparkSession.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - Spark Connect has no context to ask
        name = _sessions.setdefault("connect", f"connect-{uuid.uuid4().hex[:12]}")
    if name not in _sessions:
        _sessions[name] = name
        atexit.register(remove_files, name)
    return name


def _choose_transport(
    transport: str, plan: JoinPlan, foreign: dict[str, str], join: type[Join], *, single: bool
) -> tuple[str, str]:
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
    others = [field for field in plan.stream if field.name not in plan.asked]
    size = stream_row_bytes(pa.schema(others)) if others else 0
    if single or size > LISTS_ABOVE_BYTES:
        return "keys", f"the stream's other columns take about {size} bytes a row and stay in the JVM"
    return "rows", f"a row may have several matches, and the stream's other columns take only about {size} bytes"
