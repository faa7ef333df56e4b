"""Cloud reports of ships and land stations in their archive's fixed-width format, read and written.

The archive is NDP-026, "Edited Synoptic Cloud Reports from Ships and Land Stations Over the Globe" (Hahn, Warren and
London; CDIAC): a report is a line of 56 characters in NDP-026B, which the papers use, and of 80 in NDP-026C, which adds
eight columns. Each column is a whole number, right-justified. `FIELDS` lists them in order, with the archive's own
symbols; a value that the archive marks as missing is a NULL here. Years have two digits and mean 19xx, as in all files
up to 1996; the later files with four digits are not read.

Columns were taken from public descriptions of the format, and no file of the archive was at hand to try them on.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import SchemaError, local_path
from semistream_lab.workloads.numbered import Numbers

_BLOCK_LINES = 1 << 16
_BLANK, _MINUS, _ZERO = 32, 45, 48
_TIME = "at"


@dataclass(frozen=True)
class Field:
    """A column: its name here, the archive's symbol, its width, the values it takes, and what stands for none."""

    name: str
    symbol: str
    width: int
    least: int
    most: int
    missing: int | None = None
    zeros: bool = False  # leading zeros instead of blanks


FIELDS = (
    Field(_TIME, "yr,mn,dy,hr", 8, 0, 99_999_999, zeros=True),  # UTC
    Field("sky_bright", "IB", 1, 0, 1),  # 1: light enough to see clouds
    Field("latitude", "LAT", 5, -9000, 9000),  # hundredths of a degree
    Field("longitude", "LON", 5, 0, 36_000),  # hundredths of a degree east
    Field("station", "ID", 5, 0, 99_999, zeros=True),  # WMO number; of ships the source deck and type
    Field("surface", "LO", 1, 1, 2),  # 1 land, 2 ocean
    Field("weather", "ww", 2, 0, 99, -1),  # WMO code of present weather
    Field("cloud_cover", "N", 1, 0, 8),  # eighths
    Field("low_amount", "Nh", 2, 0, 8, -1),
    Field("base_height", "h", 2, 0, 9, -1),  # WMO code
    Field("low_type", "CL", 2, 0, 11, -1),  # WMO code; 10 cumulonimbus, 11 fog
    Field("middle_type", "CM", 2, 0, 12, -1),  # WMO code; 10 to 12 nimbostratus
    Field("high_type", "CH", 2, 0, 9, -1),
    Field("middle_amount", "AM", 3, 0, 800, 900),  # hundredths of an eighth
    Field("high_amount", "AH", 3, 0, 800, 900),
    Field("middle_seen", "UM", 1, 0, 8, 9),  # eighths, what lower clouds do not cover
    Field("high_seen", "UH", 1, 0, 8, 9),
    Field("change_code", "IC", 2, 0, 99),
    Field("solar_altitude", "SA", 4, -900, 900),  # tenths of a degree
    Field("moonlight", "RI", 4, -110, 117),  # relative lunar illuminance, hundredths
)
MORE_FIELDS = (
    Field("pressure", "SLP", 5, 0, 99_999, -1),  # at sea level, tenths of a millibar
    Field("wind_speed", "WS", 3, 0, 999, -1),  # tenths of a metre a second
    Field("wind_direction", "WD", 3, 0, 361, -1),  # degrees; 361 is no single direction
    Field("air_temperature", "AT", 4, -999, 899, 900),  # tenths of a degree Celsius
    Field("dew_point_depression", "DD", 3, 0, 700, 900),
    Field("elevation", "EL", 4, -999, 8999, 9000),  # metres; over oceans the sea's temperature in tenths
    Field("wind_measured", "IW", 1, 0, 8, 9),  # 0 estimated, 1 measured
    Field("pressure_flag", "IP", 1, 0, 9),
)
EDITIONS = {"B": FIELDS, "C": FIELDS + MORE_FIELDS}
_WIDTHS = {sum(field.width for field in fields): fields for fields in EDITIONS.values()}


def report_schema(edition: str) -> pa.Schema:
    """The columns of a report."""
    return _schema(EDITIONS[edition])


def read_reports(path: str | Path) -> Iterator[pa.RecordBatch]:
    """The reports of a file, of either edition, plain or gzipped; a damaged line is an error that names it."""
    path = local_path("path", path)
    with _opened(path) as file:
        head = file.read(max(_WIDTHS) + 2)
        if not head:
            return
        line = head.split(b"\n")[0]
        end = b"\r\n" if line.endswith(b"\r") else b"\n"
        width = len(line.rstrip(b"\r"))
        fields = _WIDTHS.get(width)
        if fields is None:
            listed = " or ".join(
                f"{known} (NDP-026{edition})" for known, edition in zip(_WIDTHS, EDITIONS, strict=True)
            )
            raise SchemaError(f"{path}, line 1: a report has {listed} characters, this line has {width}")
        size, first = width + len(end), 1
        rest = head
        while block := rest + file.read(_BLOCK_LINES * size - len(rest)):
            rest = b""
            if len(block) % size == width and b"\n" not in block[-width:]:  # the last line may lack its end
                block += end
            yield _parsed(block, size, end, fields, f"{path}, line", first)
            first += len(block) // size


def write_reports(batches: Iterable[pa.RecordBatch], path: str | Path) -> int:
    """Write reports as a file of their edition; the number of lines. The file bears its name once it is complete."""
    path, lines = local_path("path", path), 0
    draft = path.with_name(f".{path.name}.part")
    with draft.open("wb") as file:
        for batch in batches:
            file.write(_lines(batch))
            lines += batch.num_rows
    draft.rename(path)
    return lines


def _schema(fields: tuple[Field, ...]) -> pa.Schema:
    kinds = [pa.timestamp("us", "UTC"), *(pa.int32() if f.width > 4 else pa.int16() for f in fields[1:])]
    return pa.schema([pa.field(field.name, kind) for field, kind in zip(fields, kinds, strict=True)])


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.GzipFile(path)
    return path.open("rb")


def _parsed(block: bytes, size: int, end: bytes, fields: tuple[Field, ...], where: str, first: int) -> pa.RecordBatch:
    whole = len(block) // size
    letters = np.frombuffer(block, np.uint8, whole * size).reshape(whole, size)
    broken = (letters[:, size - len(end) :] != np.frombuffer(end, np.uint8)).any(axis=1)
    if len(block) % size or broken.any():
        line = first + (int(broken.argmax()) if broken.any() else whole)
        raise SchemaError(f"{where} {line}: not {size - len(end)} characters as in line 1")
    columns: list[pa.Array] = []
    schema, place = _schema(fields), 0
    for field, kind in zip(fields, schema.types, strict=True):
        text = letters[:, place : place + field.width]
        value, good = _numbers(text)
        place += field.width
        missing = value == field.missing if field.missing is not None else np.zeros(whole, bool)
        good &= missing | ((value >= field.least) & (value <= field.most))
        if field.name == _TIME:
            value, real = _times(value)
            good &= real
        if not good.all():
            bad = int(good.argmin())
            said = text[bad].tobytes().decode("ascii", "replace")
            raise SchemaError(
                f"{where} {first + bad}, characters {place - field.width + 1} to {place}: "
                f"{said!r} is no {field.name} ({field.symbol})"
            )
        columns.append(pa.array(value, mask=missing).cast(kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _numbers(text: npt.NDArray[np.uint8]) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Right-justified numbers, and which of them are well formed: blanks, one minus or none, digits."""
    digit = (text >= _ZERO) & (text < _ZERO + 10)
    minus = text == _MINUS
    order = np.where(digit, 2, np.where(minus, 1, 0))
    good = (digit | minus | (text == _BLANK)).all(axis=1) & digit[:, -1]
    good &= (np.diff(order, axis=1) >= 0).all(axis=1) & (minus.sum(axis=1) <= 1)
    powers = 10 ** np.arange(text.shape[1] - 1, -1, -1, dtype=np.int64)
    value = (np.where(digit, text.astype(np.int64) - _ZERO, 0) * powers).sum(axis=1)
    return np.where(minus.any(axis=1), -value, value), good


def _times(value: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """yymmddhh as microseconds since 1970, and which of them are real hours."""
    year, month, day, hour = value // 1_000_000, value // 10_000 % 100, value // 100 % 100, value % 100
    good = (month >= 1) & (month <= 12) & (day >= 1) & (hour < 24)
    months = (year - 70) * 12 + np.clip(month, 1, 12) - 1
    start = months.astype("datetime64[M]").astype("datetime64[D]")
    good &= day <= ((months + 1).astype("datetime64[M]").astype("datetime64[D]") - start).astype(np.int64)
    hours = (start.astype(np.int64) + day - 1) * 24 + hour
    return hours * 3_600_000_000, good


def _lines(batch: pa.RecordBatch) -> bytes:
    fields = EDITIONS["C" if MORE_FIELDS[0].name in batch.schema.names else "B"]
    lacking = [field.name for field in fields if field.name not in batch.schema.names]
    if lacking:
        raise SchemaError(f"a report needs the column {lacking[0]!r}; the batch has {batch.schema.names}")
    width = sum(field.width for field in fields)
    letters = np.full((batch.num_rows, width + 1), _BLANK, np.uint8)
    letters[:, width] = ord("\n")
    place = 0
    for field in fields:
        value = _values(batch.column(field.name), field)
        _put(letters[:, place : place + field.width], value, zeros=field.zeros)
        place += field.width
    return letters.tobytes()


def _values(column: Any, field: Field) -> Numbers:
    if column.null_count and field.missing is None:
        raise SchemaError(f"column {field.name!r} ({field.symbol}) is NULL, for which the format has no code")
    if field.name == _TIME:
        hours = column.cast(pa.timestamp("us", "UTC")).to_numpy(zero_copy_only=False).astype("datetime64[h]")
        days = hours.astype("datetime64[D]")
        months = days.astype("datetime64[M]")
        year = months.astype(np.int64) // 12 + 70
        if len(year) and not 0 <= year.min() <= year.max() <= 99:
            raise SchemaError("column 'at' has years outside of 1900 to 1999, which the format cannot write")
        day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
        hour = (hours - days).astype(np.int64)
        return ((year * 100 + months.astype(np.int64) % 12 + 1) * 100 + day) * 100 + hour
    value: Numbers = column.fill_null(field.missing or 0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    wrong = (value < field.least) | (value > field.most)
    if field.missing is not None:
        wrong &= value != field.missing
    if wrong.any():
        raise SchemaError(
            f"column {field.name!r} ({field.symbol}) holds {value[wrong.argmax()]}, "
            f"which is not between {field.least} and {field.most}"
        )
    return value


def _put(letters: npt.NDArray[np.uint8], value: Numbers, *, zeros: bool) -> None:
    """Numbers as right-justified text, place by place."""
    rest, signed = np.abs(value), value < 0
    for place in range(letters.shape[1] - 1, -1, -1):
        more = (rest > 0) | (place == letters.shape[1] - 1) | zeros
        letters[:, place] = np.where(more, _ZERO + rest % 10, np.where(signed, _MINUS, _BLANK))
        signed = signed & more  # the sign is written once
        rest = rest // 10
