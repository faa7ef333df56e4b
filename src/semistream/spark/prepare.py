"""What `enrich` is asked for, checked against stream and master, and made into an operator for the workers.

Everything that can be checked is checked here, before Spark starts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.as_of import VALID_FROM, VALID_TO, AsOf
from semistream.budget import parse_bytes
from semistream.errors import ArgumentError, SchemaError, choose
from semistream.joins.contract import Join
from semistream.joins.papers.waiting_join import WaitingJoin
from semistream.joins.window import stream_row_bytes
from semistream.lookup.bind import LookupPlan, key_mapping
from semistream.lookup.choose import SPARK_CANDIDATES, Choice, choose_algorithm
from semistream.lookup.run import open_store
from semistream.shedding import Shed
from semistream.spark.area import new_name
from semistream.spark.operator import Operator
from semistream.spark.pin_service import pin_service
from semistream.spark.pins import refresh_seconds
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
class Stream:
    """What is known of the DataFrame that is joined."""

    df: DataFrame
    schema: pa.Schema
    foreign: dict[str, str]  # columns that Arrow cannot carry, with their types
    ignore_case: bool
    tasks: int  # that may run at once on one host
    application: str

    @staticmethod
    def of(df: DataFrame) -> Stream:
        """Ask Spark."""
        schema, foreign = arrow_schema(df)
        ignore_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() != "true"
        return Stream(df, schema, foreign, ignore_case, _tasks(df), _application(df))


@dataclass(frozen=True)
class Prepared:
    """An enrichment that can be run."""

    operator: Operator
    plan: LookupPlan
    choice: Choice
    transport: str
    why_transport: str
    store: MasterStore


def prepare(
    about: Stream,
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
) -> Prepared:
    """See `semistream.spark.enrich` for the arguments."""
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
    given = stream = about.schema
    if shed is not None:
        check_shed(about.df, shed, given, how, algorithm, transport, about.foreign)
        stream, transport = shed.widened(given, ignore_case=about.ignore_case), "rows"
    plan = LookupPlan.make(
        stream,
        opened.schema,
        opened.codec,
        mapping,
        how,
        columns,
        suffix,
        defaults,
        ignore_case=about.ignore_case,
        as_of=AsOf.asked(as_of, valid_from, valid_to),
        multiple=multiple,
        status=status,
    )
    memory_bytes = parse_bytes(memory, whole=opened.bytes)
    tasks = tasks_per_host or about.tasks
    shed_plan = None if shed is None else ShedPlan.make(shed, given, memory_bytes, tasks)
    if shed_plan is not None:
        memory_bytes -= shed_plan.bytes
    choice = choose_algorithm(algorithm, opened, plan, memory_bytes, copies=tasks, candidates=SPARK_CANDIDATES)
    single = opened.unique or multiple != "all"
    chosen, why = _choose_transport(transport, plan, about.foreign, choice.join, single=single)
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
        "planned": opened.manifest.identity,
        "fixed_version": master_version != "latest",
        "tasks": tasks,
        "ignore_case": about.ignore_case,
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
    judged = [value for name, value in shape.items() if name != "planned"]
    operator = Operator(
        **shape,
        application=about.application,
        identity=_digest(described),
        sample=_digest(json.dumps([*judged, shape["fixed_version"] and opened.version, chosen], default=str)),
        pinned_by=None if shape["fixed_version"] else pin_service(about.df.sparkSession),
        shed=shed_plan,
    )
    return Prepared(operator, plan, choice, chosen, why, opened)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    if isinstance(store, MasterStore) and store.version == version:
        return store
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
    """The name of this application's directories on all hosts."""
    try:
        name = str(df.sparkSession.sparkContext.applicationId)
    except Exception:  # noqa: BLE001 - Spark Connect has no context to ask
        name = "connect"
    return _sessions.setdefault(name, new_name(name))


def _choose_transport(
    transport: str, plan: LookupPlan, foreign: dict[str, str], join: type[Join], *, single: bool
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
