"""Values as JSON and CSV bring them, in the types of a store's columns; what does not fit is told apart, not guessed.

Times come as whole numbers (days, milliseconds, microseconds, nanoseconds) or as ISO 8601, decimals as texts or
numbers. Nothing is rounded: a value with more digits than its column is a bad value.
"""

import base64
import datetime as dt
import math
from collections.abc import Callable, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.changes.rows import Bad
from semistream.errors import SchemaError
from semistream.rows import readable

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
BASE64 = "base64"  # hint: a decimal as its unscaled bytes
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EXACT = Context(prec=100)  # more digits than any column has
_ABSENT = ("", "NULL", "null", "NA", "N/A")


def array_of(values: Sequence[Any], field: pa.Field, hints: Sequence[str | None] | None = None) -> tuple[pa.Array, Bad]:
    """Python values as an Arrow column, and the rows whose value does not fit (they are NULL in the column). A hint is
    the unit of a time that comes as a number (default: the column's own), or `BASE64`.
    """
    natural = _NATURAL.get(str(field.type))
    if natural is not None and set(map(type, values)) <= natural:
        try:
            return pa.array(values, field.type), {}
        except (pa.ArrowException, OverflowError):
            pass  # one of them is out of range: find it
    convert = converter(field)
    made: list[Any] = []
    bad: Bad = {}
    for row, value in enumerate(values):
        try:
            made.append(None if value is None else convert(value, hints[row] if hints else None))
        except (ValueError, TypeError, ArithmeticError) as error:
            made.append(None)
            because = str(error) if str(error).startswith((",", ";")) else ""  # only what is said here, below
            bad[row] = f"column {field.name!r}: {_short(value)} is no {field.type}{because}"
    return times_of(made, field.type) if pa.types.is_temporal(field.type) else pa.array(made, field.type), bad


def converter(field: pa.Field) -> Callable[[Any, str | None], Any]:
    """The function that turns one value into what the column is made of; of times, whole numbers."""
    kind, types = field.type, pa.types
    if types.is_boolean(kind):
        return lambda value, _: bool(_one_of(value, (bool, int), value in (0, 1)))
    if types.is_integer(kind):
        return lambda value, _: pa.scalar(_whole(value), kind).as_py()  # raises when it is out of range
    if types.is_floating(kind):
        return lambda value, _: float(_one_of(value, (int, float, Decimal, str), not isinstance(value, bool)))
    if types.is_decimal(kind):
        return lambda value, hint: _decimal(value, kind, hint)
    if types.is_date(kind):
        return lambda value, _: _days(value) * (1 if types.is_date32(kind) else 86_400_000)
    if types.is_timestamp(kind):
        return lambda value, hint: _ticks(value, kind.unit, hint, _since_epoch)
    if types.is_time(kind):
        return lambda value, hint: _ticks(value, kind.unit, hint, _since_midnight)
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value, _: _one_of(value, (str,))
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda value, _: _bytes(value, kind)
    raise SchemaError(f"column {field.name!r} of type {kind} cannot be read from changes")


def cast_column(column: pa.Array, field: pa.Field) -> tuple[pa.Array, Bad]:
    """An Arrow column cast to the store's type, and the rows whose value does not fit."""
    if column.type.equals(field.type):
        return column, {}
    try:
        return pc.cast(column, field.type), {}
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(f"column {field.name!r} is {column.type}, the store's is {field.type}: {error}") from error
    except pa.ArrowInvalid:
        pass
    bad = {}
    for row in range(len(column)):
        one = column.slice(row, 1)
        try:
            pc.cast(one, field.type)
        except pa.ArrowInvalid:
            bad[row] = f"column {field.name!r}: {_short(readable(one)[0])} is no {field.type}"
    fits = pa.array([row not in bad for row in range(len(column))])
    return pc.cast(pc.if_else(fits, column, pa.scalar(None, column.type)), field.type), bad


def cast_texts(column: pa.Array, field: pa.Field) -> tuple[pa.Array, Bad]:
    """A column of a CSV file; an empty field is NULL, but for a text, which is then empty."""
    if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        empty = pc.is_in(column, pa.array(_ABSENT, column.type))
        column = pc.if_else(empty, pa.scalar(None, column.type), column)
    return cast_column(column, field)


_NATURAL: dict[str, set[type]] = {
    **{f"{sign}int{bits}": {int, type(None)} for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "double": {float, int, type(None)},
    "string": {str, type(None)},
    "bool": {bool, type(None)},
}


def _one_of(value: Any, types: tuple[type, ...], allowed: bool = True) -> Any:
    if not isinstance(value, types) or not allowed:
        raise TypeError
    return value


def _whole(value: Any) -> int:
    return int(_one_of(value, (int,), not isinstance(value, bool)))


def _decimal(value: Any, kind: pa.DataType, hint: str | None) -> Decimal:
    if hint == BASE64 and isinstance(value, str):
        unscaled = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        made = _EXACT.scaleb(Decimal(unscaled), -kind.scale)
    else:
        _one_of(value, (int, float, Decimal, str), not isinstance(value, bool))
        try:
            made = Decimal(str(value))
        except InvalidOperation:
            raise ValueError(
                "; send decimals as text or number (Debezium: decimal.handling.mode=string), or with their schema"
            ) from None
    if not made.is_finite():
        raise ValueError
    fitted = made.quantize(Decimal((0, (1,), -kind.scale)), context=_EXACT)
    if fitted != made or len(fitted.as_tuple().digits) > kind.precision:
        raise ValueError
    return fitted


def _days(value: Any) -> int:
    if isinstance(value, str):
        return (dt.date.fromisoformat(value.removesuffix("Z")) - dt.date(1970, 1, 1)).days
    return int(pa.scalar(_whole(value), pa.int32()).as_py())


def _ticks(value: Any, unit: str, hint: str | None, parsed: Callable[[str], int]) -> int:
    if isinstance(value, str):
        number, given = parsed(value), "us"
    else:
        number, given = _whole(value), hint or unit
    exact, rest = divmod(number * UNITS[unit], UNITS[given])
    if rest or not -(2**63) <= exact < 2**63:
        raise ValueError(f", which counts {unit}")
    return exact


def _since_epoch(text: str) -> int:
    moment = dt.datetime.fromisoformat(text)
    return ((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - _EPOCH) // dt.timedelta(microseconds=1)


def _since_midnight(text: str) -> int:
    time = dt.time.fromisoformat(text)
    return ((time.hour * 60 + time.minute) * 60 + time.second) * 10**6 + time.microsecond


def _bytes(value: Any, kind: pa.DataType) -> bytes:
    made = base64.b64decode(_one_of(value, (str,)), validate=True)
    if pa.types.is_fixed_size_binary(kind) and len(made) != kind.byte_width:
        raise ValueError
    return made


def _short(value: object) -> str:
    text = repr(float(value)) if isinstance(value, Decimal) and math.isfinite(value) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def ints(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Times as whole numbers, in the unit of the dimension."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    try:
        cast = pc.cast(whole, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"times of type {whole.type} do not fit the dimension's {kind}: {error}") from error
    return cast.view(_width(kind)).cast(pa.int64())


def times_of(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Whole numbers as times, None as NULL."""
    return pa.array(values, _width(kind)).view(kind)


def _width(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == 32 else pa.int64()
