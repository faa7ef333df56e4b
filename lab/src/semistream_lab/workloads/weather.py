"""Weather reports joined on longitude, many-to-many: the papers' real-life data, made anew.

**These data are generated.** The papers join cloud reports of April and August with those of December (NDP-026B: 20
million master rows, 6 million stream rows, on the longitude in hundredths of a degree, [0, 36000]). The archive cannot
be shipped with this package; `semistream_lab.workloads.reports` reads its files if you have them, and writes this
workload in their format. Generated here are stations and ships that are clustered as on the globe, one report of each
every three hours, and a sky that is consistent within a report (an overcast of low clouds hides the others, the sun
stands where it should) but is drawn at random, not observed. Use it for the join, never for the climate.

A longitude has hundreds of rows in a master of millions, and every stream row meets all of them: expect large outputs.

>>> load = WeatherWorkload(rows=1000, seed=7)
>>> load.stream(0, 2).select(["at", "longitude"]).to_pylist()[0]["at"].isoformat()
'1981-12-01T00:00:00+00:00'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa

from semistream.errors import ArgumentError, choose
from semistream_lab.workloads.globe import Globe
from semistream_lab.workloads.numbered import BATCH_ROWS, Numbers, check_range, slices
from semistream_lab.workloads.reports import EDITIONS, report_schema
from semistream_lab.workloads.sky import Sky

if TYPE_CHECKING:
    from semistream.stores.paged.store import Progress

_HOURS = 3  # between two reports of a station
_MASTER_MONTHS = tuple(f"{year}-{month}" for year in range(1982, 1992) for month in ("04", "08"))
_STREAM_MONTHS = tuple(f"{year}-12" for year in range(1981, 1991))


@dataclass(frozen=True)
class WeatherWorkload:
    """``rows`` reports of April and August as master, reports of December as stream; all generated.

    ``edition`` B has the 20 columns of NDP-026B, C the 28 of NDP-026C. After ten years the months come again, with
    another sky.
    """

    name: ClassVar[str] = "weather"
    idea: ClassVar[str] = "generated cloud reports, many-to-many on longitude"
    aliases: ClassVar[Mapping[str, str]] = {}
    on: ClassVar[dict[str, str]] = {"longitude": "longitude"}
    key: ClassVar[list[str]] = ["longitude"]
    stream_rows: ClassVar[int | None] = None

    rows: int = 1_000_000
    stations: int = 6_000
    ships: int = 700
    seed: int = 1
    edition: Literal["B", "C"] = "B"

    def __post_init__(self) -> None:
        choose("edition", self.edition, tuple(EDITIONS))
        for name, least in (("rows", 1), ("stations", 1), ("ships", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name}={getattr(self, name)} must be {'at least 1' if least else '0 or more'}")
        if self.stations > 97_000:
            raise ArgumentError(f"stations={self.stations} must be up to 97,000: a station's number has five digits")

    @property
    def master_rows(self) -> int:
        """Rows of the master."""
        return self.rows

    @property
    def master_schema(self) -> pa.Schema:
        """Columns of the master."""
        return report_schema(self.edition)

    @property
    def stream_schema(self) -> pa.Schema:
        """Columns of the stream: those of the master."""
        return report_schema(self.edition)

    def prepare(self, progress: Progress | None = None) -> None:
        """Nothing: every row is computed."""

    def master(self, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Reports of April and August, in order of time."""
        return slices(self.master_slice, self.rows, batch_rows)

    def master_slice(self, start: int, count: int) -> pa.RecordBatch:
        """Reports ``start`` to ``start + count`` of the master."""
        check_range(start, count, self.rows, "master")
        return self._reports(start, count, _MASTER_MONTHS, 0)

    def stream(self, start: int, count: int) -> pa.RecordBatch:
        """Reports ``start`` to ``start + count`` of December."""
        check_range(start, count)
        return self._reports(start, count, _STREAM_MONTHS, 100)

    @cached_property
    def _globe(self) -> Globe:
        return Globe(self.stations, self.ships, self.seed)

    def _reports(self, start: int, count: int, months: tuple[str, ...], use: int) -> pa.RecordBatch:
        number = np.arange(start, start + count, dtype=np.int64)
        round_, slot = np.divmod(number, self._globe.platforms)
        hours = _hours(months)
        hour = hours[round_ % len(hours)]
        platform = self._shuffled(slot, round_)
        latitude, longitude = self._globe.places(platform, hour)
        at_sea = platform >= self.stations
        station = np.where(at_sea, 1100 + platform % 8900, 1000 + platform)
        sky = Sky(self.seed, use, number, hour, latitude, longitude)
        columns = {
            "at": pa.array(hour * 3_600_000_000).cast(pa.timestamp("us", "UTC")),
            "latitude": latitude,
            "longitude": longitude,
            "station": station,
            "surface": 1 + at_sea.astype(np.int64),
            **sky.columns(),
        }
        if self.edition == "C":
            columns |= sky.more_columns(at_sea, self._globe.elevations[platform])
        schema = report_schema(self.edition)
        arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _shuffled(self, slot: Numbers, round_: Numbers) -> Numbers:
        """Every platform once a round, in an order that has nothing to do with where it lies."""
        count = self._globe.platforms
        step = int(count * 0.618) | 1
        while gcd(step, count) != 1:
            step += 2
        return (slot * step + round_ * 7919) % count


def _hours(months: tuple[str, ...]) -> Numbers:
    """The hours of these months at which reports are made, since 1970."""
    starts = np.array(months, "datetime64[M]")
    edges = np.stack([starts, starts + 1]).astype("datetime64[h]").astype(np.int64)
    return np.concatenate([np.arange(low, high, _HOURS) for low, high in edges.T.tolist()])
