"""Where a pipeline's rows come from, declared without Spark; what a batch reads of it is told apart and checked."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ArgumentError, SchemaError, StateError, choose, is_address, local_path, meant
from semistream.pipeline.routes import BROKEN, PREFIX, SOURCE
from semistream.pipeline.status import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = ("parquet", "csv", "json")
# Of other distributions, such as semistream-lab: {format: a function that makes it known to a session}.
ADDED = {found.name: found for found in entry_points(group="semistream.sources")}
FORMATS = (*FILES, "rate", "kafka", *ADDED)
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_OURS = ("mode", "columnnameofcorruptrecord", "badrecordspath")  # Spark does not tell upper from lower case
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_KAFKA = {"key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint"}
_KAFKA |= {"timestamp": "timestamp", "timestampType": "int"}
_OWN = {"rate": {"timestamp": "timestamp", "value": "bigint"}, "kafka": _KAFKA}  # columns that a format has
_NEEDS = {
    "kafka": "format='kafka' needs Spark's Kafka package, org.apache.spark:spark-sql-kafka-0-10_2.13 in Spark's "
    "version (set spark.jars.packages)"
}


@dataclass(frozen=True)
class Source:
    """A declared source; see `source`."""

    format: str
    path: Path | str | None = None  # text where it is an address that Spark reads
    schema: pa.Schema | None = None
    options: dict[str, str] = field(default_factory=dict)

    def columns(self) -> pa.Schema | None:
        """Its columns, as far as they are known without Spark."""
        if self.schema is not None:
            return self.schema
        if self.format == "parquet":
            assert isinstance(self.path, Path)
            files = sorted(file for file in self.path.rglob("*.parquet") if not file.name.startswith(("_", ".")))
            if not files:
                said = "holds no .parquet file yet, so its columns are not known; give schema= too"
                raise ArgumentError(f"path={str(self.path)!r} {said}")
            return pq.read_schema(files[0])
        return declared_schema(_OWN[self.format]) if self.format in _OWN else None

    def read(self, spark: "SparkSession") -> "DataFrame":
        """The stream, with the name of each row's file and, for text, the records that cannot be read."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        reader = spark.readStream.format(self.format).options(**self.options)
        if self.format in ADDED:
            ADDED[self.format].load()(spark)
        if self.format in FILES:
            columns = self.columns()
            assert columns is not None
            for name in ("ignoreMissingFiles", "ignoreCorruptFiles"):  # whatever the session says: rows would be lost
                reader = reader.option(name, self.options.get(name, "false"))
            ddl = ", ".join(f"`{item.name}` {_type_name(item.type)}" for item in columns)
            if self.format in ("csv", "json"):
                ddl += f", `{BROKEN}` string"
                reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", BROKEN)
            if self.format == "csv":
                reader = reader.option("header", self.options.get("header", "true")).option("enforceSchema", "false")
            reader = reader.schema(ddl)
        try:
            frame = reader.load(None if self.path is None else str(self.path))
        except (PySparkException, Py4JJavaError) as error:
            if isinstance(self.path, Path):
                raise
            what = f"format={self.format!r}" if self.path is None else f"path={self.path!r}"
            said = _NEEDS.get(self.format, f"{what} cannot be read")
            raise ArgumentError(f"{said}: {reason(str(error))}") from error
        return frame.select("*", F.col("_metadata.file_path").alias(SOURCE)) if self.format in FILES else frame


def source(
    format: str,  # noqa: A002 - Spark's word
    path: str | os.PathLike[str] | None = None,
    *,
    schema: Mapping[str, str] | pa.Schema | None = None,
    **options: Any,
) -> Source:
    """A source by its format: parquet, csv or json files of a directory, rate, kafka, or one of our generators.

    ``schema`` is {column: type} in Spark's words ("bigint", "decimal(10,2)", "timestamp"); Parquet files bring theirs.
    ``options`` are Spark's, such as ``maxFilesPerTrigger=10``.
    """
    choose("format", format, FORMATS)
    where: Path | str | None = None
    if format in FILES:
        if path is None:
            raise ArgumentError(f"format={format!r} needs path=, the directory in which the files arrive")
        where = _place(path, format)
        if isinstance(where, Path) and not where.is_dir():
            raise ArgumentError(f"path={str(path)!r} is no directory; make it first, files may arrive later")
        if schema is None and format != "parquet":
            raise ArgumentError(f"format={format!r} needs schema=, the columns and their types, as {{'id': 'bigint'}}")
    elif path is not None:
        raise ArgumentError(f"format={format!r} reads no files; leave path= out")
    elif schema is not None:
        raise ArgumentError(
            f"schema= is used by {', '.join(FILES)} only, and format={format!r} has columns of its own; leave it out"
            + (" and read the value in compute, by from_json" if format == "kafka" else "")
        )
    columns = schema if schema is None or isinstance(schema, pa.Schema) else declared_schema(schema)
    if columns is not None:
        check_names(columns.names)
    for name, value in options.items():
        if format in FILES and name.lower() in _OURS:
            raise ArgumentError(f"{name}={value!r}: records that cannot be read go to quarantine; leave it out")
        if isinstance(value, list | dict):
            raise ArgumentError(f"{name}={value!r} must be one value: a text, a number, or true or false")
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return Source(format, where, columns, texts)


def _place(path: str | os.PathLike[str], kind: str) -> Path | str:
    """A directory of this host, or an address that Spark may have a file system for."""
    if not is_address(path) or str(path).startswith("file:"):
        return local_path("path", path).absolute()
    if kind == "parquet":
        raise ArgumentError(
            f"path={str(path)!r}: the columns of remote Parquet files cannot be checked; give a local path, or a "
            "streaming DataFrame as source="
        )
    if "://" not in str(path):
        raise ArgumentError(f"path={str(path)!r} is no address; give it as text, such as 's3a://bucket/sales'")
    return str(path)


def declared_schema(columns: Mapping[str, str]) -> pa.Schema:
    """{column: type} as Arrow's schema.

    >>> declared_schema({"id": "bigint", "price": "decimal(10,2)"}).types
    [DataType(int64), Decimal128Type(decimal128(10, 2))]
    """
    if not isinstance(columns, Mapping):
        raise SchemaError(f"schema={columns!r} must be {{column: type}}, for example {{'id': 'bigint'}}")
    return pa.schema([(name, _arrow_type(name, kind)) for name, kind in columns.items()])


def _arrow_type(name: str, kind: object) -> pa.DataType:
    text = str(kind).strip().lower()
    if found := _DECIMAL.fullmatch(text):
        return pa.decimal128(*map(int, found.groups()))
    if text not in _TYPES:
        words = f"{', '.join(_TYPES)} or decimal(p,s){meant(kind, _TYPES)}"
        raise SchemaError(f"column {name!r} has the unknown type {kind!r}; use one of {words}")
    return _TYPES[text]


def _type_name(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    for word, known in _TYPES.items():
        if known.equals(kind):
            return word
    raise SchemaError(f"a stream cannot have columns of type {kind}; declare schema= with Spark's types")


def check_names(names: list[str]) -> None:
    """Refuse names that the pipeline uses itself."""
    for name in names:
        if name.lower().startswith(PREFIX):
            raise SchemaError(f"column {name!r}: names that begin with {PREFIX!r} are used by the pipeline; rename it")


def input_of(checkpoint: Path, number: int) -> str:
    """A digest of what Spark's log says that a batch reads. A batch that was decided is not computed again; so its
    number must never stand for other rows, as it would after an older copy of the checkpoint was put back.
    """
    offsets = (checkpoint / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    said = "\n".join(offsets[2:]) + "".join(files_of(checkpoint, number))  # after version and the time of the batch
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def files_of(checkpoint: Path, number: int) -> list[str]:
    found = []
    for log in sorted((checkpoint / "sources").glob("[0-9]*")):
        for file in (log / str(number), log / f"{number}.compact"):
            if file.exists():
                found += [entry["path"] for entry in _entries(file) if entry["batchId"] == number]
    return sorted(found)


def check_not_moved(source: Source, checkpoint: Path) -> None:
    """Refuse another directory than the one whose files Spark has read: it knows them by their whole path. Of the last
    batch it wants to see the files again when it starts; others of the same names it would load once more.
    """
    log = sorted((checkpoint / "sources" / "0").glob("[0-9]*"), key=lambda file: int(file.name.partition(".")[0]))
    read = [_local(entry["path"]) for file in log[-1:] for entry in _entries(file)]
    if source.path is None or not read or read[-1].is_relative_to(os.path.normpath(source.path)):
        return
    raise StateError(
        f"path={str(source.path)!r} is not the directory that was read so far: {read[-1]} was loaded, and Spark knows "
        "files by their whole path. Give the old path; if its files were moved, put a link to them there"
    )


def check_drift(source: Source, checkpoint: Path, number: int, new_columns: str) -> None:
    """Refuse Parquet files whose columns are not the declared ones; Spark would read NULLs in their place."""
    declared = source.columns() if source.format == "parquet" else None
    if declared is None:
        return
    for uri in files_of(checkpoint, number):
        path = _local(uri)
        try:
            found = pq.read_schema(path)
        except (OSError, pa.ArrowException) as error:
            raise SchemaError(
                f"{path} cannot be read as Parquet ({error}). Nothing of batch {number} is written; mend the file"
            ) from error
        said = [f"{item.name} ({item.type}) is gone" for item in declared if item.name not in found.names]
        said += [
            f"{item.name} was {item.type} and is {found.field(item.name).type}"
            for item in declared
            if item.name in found.names and not _same(item.type, found.field(item.name).type)
        ]
        if new_columns == "refuse":
            said += [f"{item.name} ({item.type}) is new" for item in found if item.name not in declared.names]
        if said:
            raise SchemaError(
                f"{path}: its columns are not those of the source: {'; '.join(said)}. Nothing of batch {number} is "
                "written; mend the file, or declare the new schema and start again (new columns can be let pass by "
                "new_columns='ignore')"
            )


def _entries(file: Path) -> list[dict[str, Any]]:
    entries = map(json.loads, file.read_text(encoding="utf-8").splitlines()[1:])
    # Other sources keep other things there: the rate source a number, Kafka its offsets.
    return [entry for entry in entries if isinstance(entry, dict) and "path" in entry and "batchId" in entry]


def _local(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path))


def _same(declared: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(found):
        return (declared.tz is None) == (found.tz is None)
    return bool(declared.equals(found))
