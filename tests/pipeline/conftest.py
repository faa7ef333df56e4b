"""The Spark session of the Spark tests, the database of the sinks' tests, and an open shop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.shop import Shop
from tests.spark.conftest import spark
from tests.warehouse.conftest import postgres

__all__ = ["postgres", "spark"]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Stores are there, sales are not yet."""
    return Shop(tmp_path).open()
