"""Arrow's types as PostgreSQL has them, and rows as COPY takes them."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from semistream.errors import ArgumentError, SchemaError, SinkError
from semistream.warehouse.contract import RESERVED
from semistream.warehouse.schemas import stored_type

_NAME_BYTES = 63  # PostgreSQL cuts a longer name, and two may become one

CHUNK_ROWS = 16_384
# Which types of Arrow, PostgreSQL's, and the type in which a column goes there and comes back; None: another.
_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str, pa.DataType | None], ...] = (
    (pa.types.is_boolean, "boolean", pa.bool_()),
    (lambda kind: kind in (pa.int8(), pa.uint8(), pa.int16()), "smallint", pa.int16()),
    (lambda kind: kind in (pa.uint16(), pa.int32()), "integer", pa.int32()),
    (lambda kind: kind in (pa.uint32(), pa.int64()), "bigint", pa.int64()),
    (lambda kind: kind == pa.uint64(), "numeric(20,0)", None),
    (lambda kind: kind in (pa.float16(), pa.float32()), "real", pa.float32()),
    (pa.types.is_float64, "double precision", pa.float64()),
    (pa.types.is_string, "text", pa.string()),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind), "bytea", pa.binary()),
    (pa.types.is_date, "date", pa.date32()),
    (pa.types.is_time, "time without time zone", pa.time64("us")),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz, "timestamp with time zone", pa.timestamp("us", tz="UTC")),
    (pa.types.is_timestamp, "timestamp without time zone", pa.timestamp("us")),
)
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


def check_name(what: str, name: object) -> str:
    """A name that PostgreSQL keeps as it is when quoted, or an error."""
    if not isinstance(name, str) or not name:
        reason = "is no name"
    elif "\0" in name:
        reason = "holds a NUL, which PostgreSQL's names cannot"
    elif len(name.encode("utf-8", "surrogatepass")) > _NAME_BYTES:
        reason = f"has more than {_NAME_BYTES} bytes, and PostgreSQL would cut it"
    elif what == "table" and name.startswith(RESERVED):
        reason = f"begins with {RESERVED}, as the tables of semistream's own do"
    else:
        return name
    raise ArgumentError(f"{what}={name!r} {reason}; choose another name")


def sql_types(schema: pa.Schema) -> dict[str, str]:
    """PostgreSQL's type of each column."""
    return {check_name("column", field.name): sql_type(field.name, field.type) for field in schema}


def sql_type(name: str, kind: pa.DataType) -> str:
    """PostgreSQL's type for Arrow's."""
    kind = stored_type(kind.value_type if pa.types.is_dictionary(kind) else kind)
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    found = next((text for fits, text, _ in _TYPES if fits(kind)), None)
    if found is None:
        raise SchemaError(
            f"column {name!r} is {kind}, for which there is no column in PostgreSQL; make plain columns or text of it"
        )
    return found


def arrow_type(name: str, text: str) -> pa.DataType:
    """Arrow's type for PostgreSQL's."""
    if text.startswith(("character varying", "character(")):
        return pa.string()
    if (numeric := _NUMERIC.fullmatch(text)) and int(numeric[1]) <= 76:
        precision, scale = map(int, numeric.groups())
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    back = next((kind for _, known, kind in _TYPES if known == text), None)
    if back is None:
        raise SchemaError(f"column {name!r} is {text} in PostgreSQL, which cannot be read as Arrow")
    return back


def batches_of(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a piece at a time."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(CHUNK_ROWS, columns=columns):
                yield batch.select(columns)  # they come in the file's order
    except (OSError, pa.ArrowException) as error:
        raise SinkError(f"{path} is damaged: {error}") from error


def csv_of(rows: pa.RecordBatch) -> bytes:
    """Rows as COPY … (FORMAT csv) takes them: NULL is nothing, an empty string is quoted."""
    columns = {str(at): _as_text(column) for at, column in enumerate(rows.columns)}
    sink = io.BytesIO()
    pacsv.write_csv(pa.table(columns), sink, pacsv.WriteOptions(include_header=False, quoting_style="needed"))
    return sink.getvalue()


def _as_text(column: pa.Array) -> pa.Array:
    """A column that Arrow writes as PostgreSQL reads it; the session's time zone is UTC."""
    if pa.types.is_dictionary(column.type):
        return _as_text(column.cast(column.type.value_type))
    stored = stored_type(column.type)
    if pa.types.is_timestamp(stored):
        # Arrow refuses to lose nanoseconds. Without its zone an instant is written as the time in UTC.
        return column.cast(stored).cast(pa.timestamp("us"))
    if stored == pa.binary() or pa.types.is_fixed_size_binary(stored):
        values = column.to_pylist()
        return pa.array([None if value is None else "\\x" + value.hex() for value in values], pa.string())
    return column.cast(next((back for fits, _, back in _TYPES if back and fits(stored)), stored))
