"""Results as a benchmark would have written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semistream_lab.cells import Cell
from semistream_lab.results import Results

ENVIRONMENT = {
    "id": "abc",
    "cpu": "A <fast> one",
    "cores": 2,
    "memory_bytes": 8_000_000_000,
    "disk": {"file_system": "ext4", "device": "vda", "kind": "solid state"},
    "system": "Linux 6",
    "python": "3.12",
    "java": "17",
    "packages": {"numpy": "2.0"},
    "commit": None,
}


def spark_cell(arm: str, repetition: int = 0, **params: Any) -> Cell:
    common = {"rows": 10_000_000, "stream": "narrow", "batch_rows": 200_000, "columns": "three"}
    memory = {"memory": "10%"} if arm == "semistream" else {}
    return Cell("spark", arm, {**common, **memory, **params}, repetition)


def core_cell(arm: str, repetition: int = 0, **params: Any) -> Cell:
    common = {"rows": 10_000_000, "stream": "narrow", "batch_rows": 200_000, "columns": "three", "memory": "10%"}
    return Cell("core", arm, {**common, **params}, repetition)


def result(rate: float, checksum: str = "1:aa", **more: Any) -> dict[str, Any]:
    return {
        "rows_per_second": rate,
        "batch_seconds": 200_000 / rate,
        "rows": 10**6,
        "checksum": {"0": checksum},
        **more,
    }


def written(directory: Path, cells: list[tuple[Cell, dict[str, Any]]]) -> Results:
    results = Results.load(directory)
    for cell, one in cells:
        results.add(cell, "abc", one)
    return Results.load(directory)
