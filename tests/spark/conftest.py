"""One Spark session for all Spark tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at once, and two attempts for each: local[2] never retries, and four attempts only take longer."""
    from semistream.spark.session import local_session

    session = local_session("tests", "local[2,2]", spark__sql__session__timeZone="America/Sao_Paulo")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
