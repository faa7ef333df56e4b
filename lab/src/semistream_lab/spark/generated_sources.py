"""The data sources that `register_sources` registers. They live in a module, so that workers find them by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from semistream.errors import ArgumentError
from semistream_lab.spark.generated import Generated


class TableReader(DataSourceReader):
    """All rows, once."""

    def __init__(self, generated: Generated, schema: StructType) -> None:
        self.generated = generated
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Equal parts of the whole."""
        end = self.generated.end
        if end is None:
            raise ArgumentError(
                f"semistream-{self.generated.workload} has no end; give the option total, the number of rows to read"
            )
        return self.generated.pieces(0, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        return self.generated.read(partition, self.schema)


class WorkloadSource(DataSource):
    """A workload as a data source; a subclass for each names it."""

    workload: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return f"semistream-{cls.workload}"

    def schema(self) -> StructType:
        """The columns of the stream, or of the master; this is also where all options are checked."""
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import StructField

        schema = self._generated().schema
        kinds = [from_arrow_type(field.type, prefer_timestamp_ntz=True) for field in schema]
        return StructType([StructField(name, kind) for name, kind in zip(schema.names, kinds, strict=True)])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return TableReader(self._generated(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        try:
            from semistream_lab.spark.generated_stream import StreamReader
        except ImportError as error:  # its read limits came with 4.2
            raise ArgumentError(
                f"streams from {self.name()} need Spark 4.2 or newer; spark.read works with this one"
            ) from error
        return StreamReader(self._generated(), schema)

    def _generated(self) -> Generated:
        return Generated.parse(self.workload, self.options)


class ZipfSource(WorkloadSource):
    """``semistream-zipf``."""

    workload = "zipf"


class RetailSource(WorkloadSource):
    """``semistream-retail``."""

    workload = "retail"


class TpchSource(WorkloadSource):
    """``semistream-tpch``."""

    workload = "tpch"


class WeatherSource(WorkloadSource):
    """``semistream-weather``."""

    workload = "weather"


SOURCES = (ZipfSource, RetailSource, TpchSource, WeatherSource)
