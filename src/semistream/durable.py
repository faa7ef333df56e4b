"""Files that appear whole or not at all, and errors that say what the system refused and what helps."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semistream.errors import SemistreamError, StoreIOError

_ROOM = "make room there (`semistream vacuum` removes old versions) and repeat"
_RIGHTS = "make the directory writable for this user, or choose another path"
_LIMIT = "close other files or raise the limit of open files (`ulimit -n`), and repeat"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: _RIGHTS,
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EMFILE: _LIMIT,
    errno.ENFILE: _LIMIT,
    errno.EIO: "the disk reports an error: look at the system's log, and restore the store if it is damaged",
}


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn the system's refusal into an error that names the file, what was being done and the remedy.

    Whether a file may exist or be missing is for the caller to judge.
    """
    try:
        yield
    except (SemistreamError, FileExistsError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "nothing was changed; repeat when the cause is gone")
        raise StoreIOError(f"cannot {doing} {path}: {error.strerror or error}; {remedy}") from error


def publish_new(target: Path, text: str) -> None:
    """Make a small file appear whole and durable; a FileExistsError when another one of that name was first."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}")
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)  # before the link: after it nothing may fail
    try:
        try:
            with open(temporary, "x", encoding="utf-8", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        os.fsync(directory)
    finally:
        os.close(directory)


def private(path: str, flags: int) -> int:
    """An opener for files that only their owner may read."""
    return os.open(path, flags, 0o600)


def sync_directory(path: Path) -> None:
    """Make renames and links in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
