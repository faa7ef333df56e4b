"""What making a benchmark's data takes, disk and time, known before it begins.

Bytes per row were seen with a master of 2 M rows, with some room; seconds per million rows on two cores of an EPYC.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semistream.budget import format_bytes
from semistream_lab.errors import SettingError

if TYPE_CHECKING:
    from semistream_lab.data import BenchData
    from semistream_lab.settings import Settings

_ROOM = 0.9  # of the free bytes, for data that is kept
_WITHOUT_PARQUET = ("sweep", "sweep_groups", "sweep_each", "inl", "whole", "duckdb_table", "build")
_STORE_BYTES = 140
_GROUP_BYTES = {"narrow": 28, "three": 34, "text": 106}


@dataclass(frozen=True)
class Part:
    """A directory that is still to be made: bytes of a row of the master, those on the disk only meanwhile, time."""

    words: str
    bytes: int
    seconds: float  # for a million rows
    meanwhile: int = 0


def missing(data: BenchData, settings: Settings) -> list[Part]:
    """What is not there yet, of the parts that some arms read."""
    arms = settings.arms
    parts = {
        "unsorted": Part("the master, unsorted", 40, 0.7),
        "store": Part("the store", _STORE_BYTES, 1.2, meanwhile=_STORE_BYTES),  # the sort spills as much again
    }
    if settings.grouped:
        for columns in settings.columns:
            if columns in _GROUP_BYTES:
                parts[f"store-with-{columns}"] = Part(f"a column group ({columns})", _GROUP_BYTES[columns], 0.2)
    if "duckdb_table" in arms or "duckdb" in arms:
        import duckdb

        parts[f"duckdb-{duckdb.__version__}"] = Part("DuckDB's table", 40, 1.0)
    if settings.suite != "peers" and any(arm not in _WITHOUT_PARQUET for arm in arms):
        parts["master"] = Part("the master as Parquet", 40, 0.5)
    found = [part for name, part in parts.items() if not (data.directory / name).exists()]
    # The arm `build` makes a store once more, in a directory that is removed.
    return found + ([Part("a store to time", 0, 0.0, meanwhile=2 * _STORE_BYTES)] if "build" in arms else [])


@dataclass(frozen=True)
class Making:
    """What all parts take together."""

    bytes: int
    meanwhile: int
    seconds: float

    @staticmethod
    def of(settings: Settings) -> Making:
        """For all sizes of the master."""
        every = [(settings.data_of(rows), rows) for rows in settings.sizes]
        parts = [(part, rows) for data, rows in every for part in missing(data, settings)]
        return Making(
            sum(part.bytes * rows for part, rows in parts),
            max((part.meanwhile * rows for part, rows in parts), default=0),
            sum(part.seconds * rows / 1e6 for part, rows in parts),
        )


def announcement(settings: Settings) -> str | None:
    """A line for the terminal; None when nothing takes long."""
    making, free = Making.of(settings), _free(settings.data)
    if making.seconds < 1:
        return None
    names: Iterable[str] = dict.fromkeys(
        part.words for rows in settings.sizes for part in missing(settings.data_of(rows), settings) if part.seconds
    )
    sizes = ", ".join(f"{rows:,}" for rows in settings.sizes)
    more = f" and {format_bytes(making.meanwhile)} more meanwhile" if making.meanwhile else ""
    return (
        f"data of {sizes} rows is made first: {', '.join(names)}; about {_duration(making.seconds)} on two idle cores, "
        f"{format_bytes(making.bytes)} of disk{more}, of {format_bytes(free)} that are free"
    )


def check_room(settings: Settings) -> None:
    """Raise an error where the data that is still to be made does not fit on the disk."""
    making, free = Making.of(settings), _free(settings.data)
    needed = making.bytes + making.meanwhile
    if needed > _ROOM * free:
        sizes = ", ".join(f"{rows:,}" for rows in settings.sizes)
        raise SettingError(
            f"the data for {sizes} rows takes about {format_bytes(needed)}, and the disk of {settings.data} has "
            f"{format_bytes(free)} left; give fewer --rows, or name another disk by --data"
        )


def _free(place: Path) -> int:
    there = next(one for one in (place.absolute(), *place.absolute().parents) if one.exists())
    return shutil.disk_usage(there).free


def _duration(seconds: float) -> str:
    """In words.

    >>> _duration(42), _duration(240), _duration(9000)
    ('1 minute', '4 minutes', '2.5 hours')
    """
    if seconds > 2 * 3600:
        return f"{seconds / 3600:.1f} hours"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"
