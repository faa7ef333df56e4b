"""Every error that semistream raises on purpose; each message names the thing, the choices and the remedy."""

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least: c:/x is no address


class SemistreamError(Exception):
    """The root of all errors raised by semistream."""

    exit_code = 1  # of a command: data, stores, states and machines


class UsageError(SemistreamError):
    """What was asked for cannot be: nothing has happened, and the same call fails again."""

    exit_code = 2


class ArgumentError(UsageError, ValueError):
    """An argument that cannot be used; the message names it and the choices."""


class SchemaError(UsageError, ValueError):
    """Columns or types that do not fit together."""


class KeyTypeError(SchemaError):
    """The key columns of stream and master differ in type."""


class MemoryBudgetError(SemistreamError):
    """A budget too small for even one row, or a part that asked for more than was granted."""


class SharedMemoryError(SemistreamError):
    """No room in shared memory for what the tasks of a host share; the message names the place and the size."""


class StoreError(SemistreamError):
    """A master store that cannot be used."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at that path, or not that version of it."""


class CorruptStoreError(StoreError):
    """A file of the store is damaged or not one of ours; the message names the file."""


class StoreIOError(StoreError, OSError):
    """The system refused to read or write a file of a store; ``__cause__`` is its own error."""


class ConcurrentWriteError(StoreError):
    """Another writer published a version first."""


class OtherVersionError(StoreError):
    """What lies at a store's path is not the content that was agreed on."""


class EmptyMasterError(StoreError):
    """The master holds no rows, so nothing could ever match."""


class MatchRateError(SemistreamError):
    """Fewer stream rows matched than ``min_match_rate`` asks for."""


class UnmatchedRowError(SemistreamError):
    """A row without a match while ``on_miss="fail"``."""


class FanOutError(SemistreamError):
    """A stream row with more than one match while ``multiple="error"``."""


class SheddingError(SemistreamError):
    """Shed rows that cannot be written, read or told apart; the message names the file."""


class BadRecordsError(SemistreamError):
    """More bad records than ``max_bad_rate`` allows; they are in ``rejects``, and nothing was applied."""

    def __init__(self, message: str, rejects: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.rejects = list(rejects)


class StateError(SemistreamError):
    """A pipeline's state that does not fit what it is asked to do; the message names the file."""


class SinkError(SemistreamError):
    """A batch that a sink must not or cannot write."""


class ForeignCheckpointError(SinkError):
    """The table belongs to another checkpoint of this stream: under the new one every row would be written again."""


class StaleWriterError(SinkError):
    """Another run of the same stream wrote to the table meanwhile."""


class MissingBatchesError(SinkError):
    """Batches that Spark counts as done are not in the table."""


class PipelineFileError(ArgumentError):
    """A pipeline's file that cannot be used; the message names file, line and choices."""


class StepError(ArgumentError):
    """A step that cannot be; ``number`` is its place, ``word`` the setting that is wrong."""

    def __init__(self, number: int, word: str, message: str) -> None:
        super().__init__(f"step {number + 1}: {message}")
        self.number = number
        self.word = word
        self.message = message


class AccountingError(SemistreamError):
    """Rows in and rows accounted for differ: a defect of semistream, never of the data."""


class InvariantError(SemistreamError):
    """An algorithm's own invariant does not hold: a defect of semistream."""


class CalibrationError(SemistreamError):
    """A calibration cannot be used on this machine."""


class JavaNotFoundError(SemistreamError):
    """No Java 17 or 21 was found."""


def is_address(path: object) -> bool:
    """Does this name a place by a scheme, as s3://bucket/x does? ``Path`` makes s3:/bucket/x of it: that too.

    >>> is_address("s3://bucket/x"), is_address("./s3:/x")
    (True, False)
    """
    return _SCHEME.match(str(path)) is not None


def local_path(name: str, path: object) -> Path:
    """A path on this host's disks, else an error: every path that semistream opens itself comes through here.

    >>> local_path("state", "/data/state").name
    'state'
    """
    if str(path) == "" or "\0" in str(path):
        raise ArgumentError(f"{name}={str(path)!r} is no path; give one on a local or mounted disk, such as /data/x")
    if not is_address(path):
        return Path(str(path))
    scheme, _, rest = str(path).partition(":/")
    address = f"{scheme}://{rest if scheme == 'file' else rest.lstrip('/')}"
    raise ArgumentError(
        f"{name}={address!r} is remote, or not a plain path; give a path on a local or mounted disk, such as /data/x"
    )


def choose(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return ``value`` when it is one of ``choices``, else raise an error that names them.

    >>> choose("how", "left", ("left", "inner"))
    'left'
    """
    if isinstance(value, str) and value in choices:
        return value
    listed = ", ".join(repr(choice) for choice in choices)
    raise ArgumentError(f"{name}={value!r} is not known; choose one of {listed}{meant(value, choices)}")


def meant(value: object, choices: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the one that it resembles, if there is one.

    >>> meant("on_mis", ["on", "on_miss", "then"]), meant("x", ["on"])
    (" (did you mean 'on_miss'?)", '')
    """
    words = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(str(value).lower(), words, n=1, cutoff=0.7)
    return f" (did you mean {words[found[0]]!r}?)" if found else ""


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "page"), counted(2000, "batch", "batches")
    ('1 page', '2,000 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
