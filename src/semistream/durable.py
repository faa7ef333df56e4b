"""Files that appear whole or not at all, small ones with a checksum, and errors that name what helps."""

import errno
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from semistream.errors import CorruptStoreError, SemistreamError, StoreIOError

_ROOM = "make room there (`semistream vacuum` removes old versions) and repeat"
_RIGHTS = "make the directory writable for this user, or choose another path"
_LIMIT = "close other files or raise the limit of open files (`ulimit -n`), and repeat"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _ROOM),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _RIGHTS),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _LIMIT),
    errno.EIO: "the disk reports an error: look at the system's log, and restore the store if it is damaged",
}


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn the system's refusal into an error that names the file, what was being done and the remedy. Whether a file
    may exist or be missing is for the caller to judge.
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


def create_once(path: Path, content: dict[str, object]) -> None:
    """Write a small file with a checksum, unless it is there: then what the first one wrote counts."""
    with suppress(FileExistsError):  # another task created it first; use that one
        publish_new(path, json.dumps({**content, "crc32": checksum(content)}))


def read_once(path: Path, numbers: tuple[str, ...], remedy: str) -> dict[str, Any] | None:
    """What `create_once` wrote, with these numbers in it; None when there is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        content = json.loads(text)
        if content.pop("crc32") != checksum(content):
            raise ValueError("its checksum does not fit")
        for name in numbers:
            float(content[name])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptStoreError(f"{path} is damaged ({error}); delete it to {remedy}") from error
    return dict(content)


def rewrite(path: Path, content: dict[str, object]) -> None:
    """Exchange a small file with a checksum; it is never missing, not even for a moment."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    create_once(draft, content)
    draft.replace(path)
    sync_directory(path.parent)


def checksum(body: dict[str, Any]) -> int:
    """Of a JSON document, however it is laid out."""
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())


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
