"""What a run of a suite is asked for, checked before any work is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from semistream.errors import choose
from semistream.joins import FORMER_NAMES
from semistream_lab.abilities import join_takes
from semistream_lab.asked import check_directories, check_memory, check_numbers, once
from semistream_lab.cells import GROUPS, enriched
from semistream_lab.data import BenchData
from semistream_lab.errors import SettingError
from semistream_lab.grid_joins import Grid

CORE_ARMS = ("sweep", "sweep_groups", "sweep_each", "inl", "whole", "duckdb_parquet", "duckdb_table", "build")
SPARK_ARMS = ("source", "passthrough", "plain", "bucketed", "broadcast_stream", "semistream")


def arms_of(suite: str) -> tuple[str, ...]:
    """The arms that a suite has."""
    if suite == "joins":
        from semistream_lab.arms_joins import ARMS

        return ARMS
    if suite == "peers":
        from semistream_lab.peers import PEERS

        return tuple(PEERS)
    return CORE_ARMS if suite == "core" else SPARK_ARMS


class Run(Protocol):
    """What running cells needs to know."""

    @property
    def out(self) -> Path:
        """Where results go."""

    @property
    def data(self) -> Path:
        """Where data is made and found again."""

    @property
    def timeout_seconds(self) -> float:
        """When a cell is given up."""

    @property
    def command(self) -> str:
        """How to run this again."""


@dataclass(frozen=True)
class Settings:
    """What a run of a suite is asked for."""

    suite: str
    rows: int
    out: Path
    data: Path
    arms: tuple[str, ...] = ()
    memory: tuple[str, ...] = ("10%",)
    batch_rows: tuple[int, ...] = (200_000, 2_000_000)
    streams: tuple[str, ...] = ("narrow", "wide")
    repetitions: int = 3
    batches: int | None = None
    warmup: int | None = None
    columns: tuple[str, ...] = ("three",)
    more_rows: tuple[int, ...] = ()
    skews: tuple[float, ...] = (1.0,)
    threads: tuple[int, ...] = (1, 2)
    cold: bool = False
    grid: Grid | None = None
    timeout_seconds: float = 3600.0

    def __post_init__(self) -> None:
        known = arms_of(self.suite)
        arms = tuple(choose("arms", FORMER_NAMES.get(arm, arm), known) for arm in self.arms)
        object.__setattr__(self, "arms", once(arms or known))
        for stream in self.streams:
            choose("streams", stream, ("narrow", "wide"))
        for columns in self.columns:
            enriched(columns)
        for rows in self.more_rows:
            check_numbers(1, rows=rows)
        for skew in self.skews:
            check_numbers(0, skew=skew)
        for threads in self.threads:
            check_numbers(1, threads=threads)
        check_numbers(1, rows=self.rows, repetitions=self.repetitions, batches=self.batches, warmup=self.warmup)
        if not self.batch_rows or min(self.batch_rows) < 2:
            raise SettingError(f"batch_rows={list(self.batch_rows)} must name sizes of at least 2 rows")
        check_memory(*self.memory)
        check_directories(out=self.out, data=self.data)
        if self.suite == "core" and self.our_threads == () and any(arm.startswith("sweep") for arm in self.arms):
            raise SettingError(
                f"--threads {','.join(map(str, self.threads))}: this version's join takes no threads; add 1, or leave "
                "sweep out of --arms"
            )
        if self.suite == "core" and set(self.arms) == {"sweep_groups"} and set(self.columns) == {"all"}:
            raise SettingError("a column group of all columns is the store itself: give sweep_groups other --columns")
        for name in ("memory", "batch_rows", "streams", "columns", "more_rows", "skews", "threads"):
            object.__setattr__(self, name, once(getattr(self, name)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all masters."""
        return once((self.rows, *self.more_rows))

    @property
    def grouped(self) -> bool:
        """Does an arm read a store with a column group?"""
        return any(arm == "semistream" or arm.endswith(GROUPS) for arm in self.arms)

    def data_of(self, rows: int) -> BenchData:
        """The data of one number of master rows."""
        return BenchData(self.data, rows)

    @property
    def our_threads(self) -> tuple[int, ...]:
        """Threads that our join is asked for, where it can be asked."""
        return self.threads if join_takes("threads") else tuple(count for count in self.threads if count == 1)

    @property
    def command(self) -> str:
        """How to run this again; where data and results go is left out."""
        options: dict[str, Any] = {
            "rows": ",".join(map(str, self.sizes)),
            "peers" if self.suite == "peers" else "arms": ",".join(self.arms),
            "memory": ",".join(self.memory),
            "batch-rows": ",".join(map(str, self.batch_rows)),
            "streams": ",".join(self.streams) if self.suite == "spark" else None,
            "repetitions": self.repetitions,
            "batches": self.batches,
            "warmup": self.warmup,
            "columns": ",".join(self.columns),
            "skews": ",".join(f"{skew:g}" for skew in self.skews) if self.suite == "core" else None,
            "threads": ",".join(map(str, self.threads)) if self.suite == "core" else None,
        }
        if self.grid is not None:
            grid = self.grid
            options = {
                "sizes": ",".join(map(str, grid.sizes)),
                "memory": ",".join(grid.memory),
                "skews": ",".join(f"{skew:g}" for skew in grid.skews),
                "layouts": ",".join(grid.layouts),
                "arms": ",".join(self.arms),
                "repetitions": self.repetitions,
                "seconds": f"{grid.seconds:g}",
                "warm-seconds": f"{grid.warm_seconds:g}",
            }
        words = [f"--{name} {value}" for name, value in options.items() if value is not None]
        words += ["--cold"] if self.cold else []
        words += ["--cross"] if self.grid is not None and self.grid.crossed else []
        return " ".join([f"semistream bench {self.suite}", *words])

    def timed_batches(self, size: int) -> int:
        """How many batches are timed: about as many rows as make several seconds."""
        if self.suite == "spark":
            return self.batches or (5 if size >= 1_000_000 else 10)
        if self.suite == "peers":
            return self.batches or max(1, 2_000_000 // size)
        return self.batches or max(1, 12_000_000 // size)
