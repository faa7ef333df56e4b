"""The errors of the laboratory that users can meet."""

from __future__ import annotations

from semistream.errors import SemistreamError


class OffsetError(SemistreamError):
    """A checkpoint that was written with other options."""


class GeneratorError(SemistreamError):
    """The TPC-H generator is missing, or failed."""


class BenchmarkError(SemistreamError):
    """A benchmark that cannot be run, or whose arms do not agree."""


class SettingError(BenchmarkError):
    """A benchmark that cannot be run as it was asked for."""

    exit_code = 2
