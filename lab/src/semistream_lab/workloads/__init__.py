"""Streams and masters for tests, demos and benchmarks, all with one contract and in one registry.

>>> from semistream_lab.workloads import WORKLOADS, make_workload
>>> sorted(WORKLOADS)
['retail', 'tpch', 'weather', 'zipf']
>>> load = make_workload("zipf", rows=1000, skew=1.2)
>>> load.on, load.stream(0, 5).num_rows
({'key': 'key'}, 5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semistream_lab.workloads.contract import Workload
    from semistream_lab.workloads.registry import WORKLOADS, make_workload

__all__ = ["WORKLOADS", "Workload", "make_workload"]


def __getattr__(name: str) -> object:
    """Loaded when asked for: the command line shows its help without Arrow and numpy."""
    if name in ("WORKLOADS", "make_workload"):
        from semistream_lab.workloads import registry

        return getattr(registry, name)
    if name == "Workload":
        from semistream_lab.workloads import contract

        return getattr(contract, name)
    raise AttributeError(f"module 'semistream_lab.workloads' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
