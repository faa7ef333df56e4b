"""A private directory in shared memory, for what one application's Python workers share on one host.

Private: only the application's tasks know the random part of its name, and it must belong to this user alone. Its files
are opened below its descriptor, without following links, and checked on their own descriptor, never by path. A task
holds the file ``alive`` by a shared lock, and so does a keeper for each executor (`semistream.spark.keeper`); whoever
comes by removes directories whose ``alive`` nobody holds.
"""

import fcntl
import inspect
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from semistream.errors import SemistreamError
from semistream.spark import keeper

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - private directories of mode 0700 inside
_ALIVE = "alive"
_SPARE_BYTES = 16 << 20


def new_name(application: str) -> str:
    """A name for an application's directories, which nobody can know beforehand."""
    clean = "".join(c if c.isalnum() else "_" for c in application)
    return f"{clean}-{secrets.token_hex(16)}"


def directories(name: str) -> list[Path]:
    """Where an application's files may be on this host: in shared memory, or where that has no room."""
    bases = dict.fromkeys([SHARED_MEMORY, Path(tempfile.gettempdir())])
    return [base / f"semistream-{os.geteuid()}-{name}" for base in bases]


def remove_files(name: str) -> None:
    """Remove the files of an application; processes that still map them are not disturbed."""
    _remove(directories(name), force=True)


def remove_stale() -> None:
    """Remove the directories of this user that no process holds: their keepers were killed with all the others."""
    _remove(path for pattern in directories("*") for path in pattern.parent.glob(pattern.name))


def _remove(paths: Iterable[Path], *, force: bool = False) -> None:
    for path in paths:
        with suppress(OSError, SemistreamError), _opened(path) as directory, _opened(_ALIVE, directory) as alive:
            if not keeper.remove_unused(str(path), alive) and force:
                shutil.rmtree(path)


@contextmanager
def _opened(name: str | Path, directory: int | None = None) -> Iterator[int]:
    """As `_open`, while the body runs."""
    fd = _open(name, directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _open(name: str | Path, directory: int | None = None) -> int:
    """Open a directory, or open or create a file of one; links, and what others may touch, are refused."""
    flags = os.O_RDONLY | os.O_DIRECTORY if directory is None else os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    found, wrong = os.fstat(fd), ""
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        wrong = (
            f"{name} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}, and not to user "
            f"{os.geteuid()} alone; nothing is read from it. Remove it, or set another temporary directory (TMPDIR)"
        )
    elif directory is not None and not stat.S_ISREG(found.st_mode):
        wrong = f"{name} is not a plain file; remove it"
    if wrong:
        os.close(fd)
        raise SemistreamError(wrong)
    return fd


@dataclass(frozen=True)
class Area:
    """The directory, while a task runs; several processes have it open at once."""

    path: Path
    _directory: int

    def open(self, name: str) -> int:
        """A descriptor of one of its files, created when it is not there."""
        return _open(name, self._directory)

    def stat(self, name: str) -> os.stat_result | None:
        """Of one of its files; None when there is none."""
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> list[str]:
        """Of its files that begin so."""
        return [name for name in os.listdir(self._directory) if name.startswith(prefix)]  # noqa: PTH208 - by descriptor

    def rename(self, old: str, new: str) -> None:
        """Give a file its name, once it is whole."""
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def unlink(self, name: str) -> None:
        """Remove a file; those who map it are not disturbed."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)

    @contextmanager
    def locked(self, name: str) -> Iterator[int]:
        """One of its files, while no other task has it."""
        with _opened(name, self._directory) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd


@contextmanager
def area(name: str, size: int, prefix: str) -> Iterator[Area]:
    """Where files with this prefix go: into shared memory if ``size`` more bytes fit; the file ``prefix`` marks it."""
    memory, *others = candidates = directories(name)
    fits = (memory / prefix).exists() or _free_shared_memory() > size + _SPARE_BYTES
    if others and (not fits or any((path / prefix).exists() for path in others)):
        candidates = others
    for path in candidates:
        with ExitStack() as stack:
            if (found := _enter(path, stack)) is not None:
                os.close(found.open(prefix))
                yield found
                return
    places = " or ".join(str(path.parent) for path in directories(name))
    raise SemistreamError(f"no directory for shared files can be made in {places}")


def _free_shared_memory() -> int:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _enter(path: Path, stack: ExitStack) -> Area | None:
    """The directory, made when it is not there and watched by a keeper, until the stack ends; None: no right to."""
    while True:
        try:
            if not path.exists():
                remove_stale()
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            directory = stack.enter_context(_opened(path))
            alive = stack.enter_context(_opened(_ALIVE, directory))
        except FileNotFoundError:
            if not path.parent.is_dir():
                return None
            continue  # removed by others in between
        except PermissionError:
            return None
        fcntl.flock(alive, fcntl.LOCK_SH)
        if os.fstat(alive).st_nlink:  # else it was removed before we had it
            _watch(path, directory)
            return Area(path, directory)
        stack.close()


def _watch(path: Path, directory: int) -> None:
    """Start a keeper for this executor unless it has one: the keeper inherits the lock that says so."""
    pid, start = _anchor()
    keeps = f"keeper-{pid}-{start}"
    with suppress(BlockingIOError), _opened(keeps, directory) as lock, _opened(_ALIVE, directory) as alive:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(alive, fcntl.LOCK_SH)
        # By standard input, so that the process list shows neither the source nor the directory's name.
        call = f"\nkeep({str(path)!r}, {alive}, {pid}, {start!r})\n"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-", "semistream-keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[lock, alive],
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(OSError), process.stdin as pipe:
            pipe.write((inspect.getsource(keeper) + call).encode())
        process.returncode = 0  # it outlives us: no warning that it still runs


def _anchor() -> tuple[int, str]:
    """The process with which this executor's Python workers end: their daemon, which leads their group; or this one."""
    pid = os.getppid()
    start = keeper.started(pid) if os.getpgrp() == pid else None
    if start is None or os.getppid() != pid:
        pid = os.getpid()
        start = keeper.started(pid)
    assert start is not None
    return pid, start
