"""What holds for all tests: the longest files begin first, and no example is too slow for Hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes, or how long it takes to make one up, says something of the machine only.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# A worker gets whole files, so a long one that begins last is waited for alone. Those of half a minute or so, in order.
LONGEST = (
    "joins/test_conformance.py",
    "pipeline/test_faults.py",
    "joins/test_papers.py",
    "lab/demo/test_demo.py",
    "pipeline/test_crashes.py",
    "spark/test_differential.py",
    "spark/test_misses.py",
    "spark/test_sources.py",
    "spark/test_versions.py",
    "spark/test_alike.py",
    "pipeline/test_undo.py",
    "pipeline/test_command.py",
    "pipeline/test_moving.py",
    "pipeline/test_hostile.py",
    "joins/test_as_of.py",
    "joins/test_warm.py",
    "joins/test_split.py",
    "planner/test_models.py",
    "warehouse/test_warehouses.py",
    "pipeline/test_pipeline.py",
    "spark/test_memory.py",
    "lab/papers/test_runs.py",
    "pipeline/test_relief.py",
    "spark/test_shedding.py",
    "stores/test_crashes.py",
    "warehouse/test_delta_spark.py",
    "test_tutorial.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by file: the longest first, the others in the order in which they were found."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
