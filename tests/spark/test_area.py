"""The private directory of shared files: what others plant is refused, and nothing stays after its users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semistream.errors import SemistreamError
from semistream.spark import area as areas
from semistream.spark.area import area, directories, new_name, remove_files, remove_stale
from semistream.spark.keeper import started
from semistream.spark.shared import shared_table
from semistream.stores.paged.manifest import StoreVersion
from tests.spark.streams import wait_until

ROOT = Path(__file__).parents[2]
SOMEONE = 54_321  # a user id that is not ours
CONTENT = StoreVersion("id", 1, 2)
GOOD, FORGED = pa.table({"price": [1.0]}), pa.table({"price": [666.0]})


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An application whose shared memory is a directory of this test."""
    monkeypatch.setattr(areas, "SHARED_MEMORY", tmp_path)
    made = new_name("test")
    yield made
    remove_files(made)


def forge(path: Path) -> None:
    with pa.ipc.new_file(path, FORGED.schema) as writer:
        writer.write_table(FORGED)


def give_away(path: Path) -> str:
    """Let a file belong to someone else, and to others where only root could do that; what is said of it."""
    if os.geteuid() != 0:
        path.chmod(0o666)
        return "mode 666"
    os.chown(path, SOMEONE, SOMEONE)
    return f"belongs to user {SOMEONE}"


def table_name(name: str) -> str:
    """What the table's file is called."""
    with area(name, 0, "x") as here:
        shared_table(here, "x", CONTENT, lambda: GOOD)
        [found] = here.names("x-table-")
        return found


def test_names_cannot_be_guessed() -> None:
    assert len({new_name("app-1") for _ in range(100)}) == 100
    assert all(len(new_name("app/../1")) > 32 and "/" not in new_name("app/../1") for _ in range(3))


def test_private(name: str) -> None:
    with area(name, 0, "x") as here:
        shared_table(here, "x", CONTENT, lambda: GOOD)
        assert here.path.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in here.path.iterdir()} == {0o600}


class TestPlanted:
    """Whoever should know the name: what is not ours alone is not read."""

    def test_a_directory_that_others_may_write(self, name: str) -> None:
        path = directories(name)[0]
        path.mkdir()
        path.chmod(0o777)
        forge(path / "x-table-anything")
        with pytest.raises(SemistreamError, match=r"mode 777.*nothing is read from it"), area(name, 0, "x"):
            pass

    def test_a_link_to_a_directory(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        directories(name)[0].symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match=r"directory|symbolic"), area(name, 0, "x"):
            pass
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_a_link_to_a_file(self, name: str, tmp_path: Path) -> None:
        file = table_name(name)
        forge(tmp_path / "forged")
        path = directories(name)[0] / file
        path.unlink()
        path.symlink_to(tmp_path / "forged")
        with area(name, 0, "x") as here, pytest.raises(OSError, match="symbolic links"):
            shared_table(here, "x", CONTENT, lambda: GOOD)

    def test_a_pipe(self, name: str) -> None:
        file = table_name(name)
        path = directories(name)[0] / file
        path.unlink()
        os.mkfifo(path, 0o600)
        with area(name, 0, "x") as here, pytest.raises(SemistreamError, match="not a plain file"):
            shared_table(here, "x", CONTENT, lambda: GOOD)

    def test_a_directory_of_another_user(self, name: str) -> None:
        path = directories(name)[0]
        path.mkdir(mode=0o700)
        (path / "precious").touch()
        said = give_away(path)
        with pytest.raises(SemistreamError, match=said), area(name, 0, "x"):
            pass
        remove_stale()
        remove_files(name)
        assert (path / "precious").exists()  # not ours to remove

    def test_a_table_of_another_user(self, name: str) -> None:
        path = directories(name)[0] / table_name(name)
        forge(path)
        said = give_away(path)
        with area(name, 0, "x") as here, pytest.raises(SemistreamError, match=said):
            shared_table(here, "x", CONTENT, lambda: GOOD)

    @pytest.mark.parametrize("planted", ["alive", "x", "data"])
    def test_a_file_of_another_user(self, name: str, planted: str) -> None:
        with area(name, 0, "x") as here:
            os.close(here.open("data"))
        said = give_away(here.path / planted)
        with pytest.raises(SemistreamError, match=said), area(name, 0, "x") as here:
            here.open(planted)

    def test_a_file_that_others_may_write(self, name: str) -> None:
        file = table_name(name)
        (directories(name)[0] / file).chmod(0o666)
        with area(name, 0, "x") as here, pytest.raises(SemistreamError, match="mode 666"):
            shared_table(here, "x", CONTENT, lambda: GOOD)


def test_where_there_is_no_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(areas, "SHARED_MEMORY", tmp_path / "missing")
    name = new_name("test")
    with area(name, 10, "x") as here:
        assert here.path in directories(name)[1:]
        assert here.path.stat().st_mode & 0o777 == 0o700
    remove_files(name)
    assert not here.path.exists()


# A daemon as Spark has it, which leads the process group of its workers.
DAEMON = """
import os, sys, time
from pathlib import Path
from semistream.spark import area
area.SHARED_MEMORY = Path(sys.argv[1])
os.setpgid(0, 0)
for _ in range(2):
    if os.fork() == 0:
        with area.area(sys.argv[2], 0, "x") as here:
            os.close(here.open("data"))
        print("worker", os.getpid(), flush=True)
        os._exit(0)
    os.wait()
print("daemon", os.getpid(), flush=True)
time.sleep(600)
"""


def keepers(name: str, base: Path) -> list[int]:
    """The processes that hold the file ``alive`` of an application's directory, apart from this one."""
    alive = base / directories(name)[0].name / "alive"
    found = []
    for directory in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(fd) == str(alive) for fd in directory.iterdir()):
                found.append(int(directory.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


class TestKeeper:
    @pytest.fixture
    def daemon(self, name: str, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        """A daemon whose two workers have used the directory and are gone."""
        process = self.start(name, tmp_path)
        yield process
        process.kill()
        process.communicate()

    def start(self, name: str, base: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DAEMON, str(base), name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        assert [process.stdout.readline().split()[0] for _ in range(3)] == ["worker", "worker", "daemon"]
        return process

    def test_goes_with_the_daemon(self, name: str, tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
        path = directories(name)[0]
        both = wait_until(lambda: len(found := keepers(name, tmp_path)) == 2 and found)
        remove_stale()
        assert path.is_dir()  # it is held
        for pid in both:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert b"semistream-keeper" in command
            assert path.name.encode() not in command  # the process list is for everyone
        daemon.kill()
        daemon.wait()
        wait_until(lambda: not path.exists())
        wait_until(lambda: not [pid for pid in both if started(pid)])

    def test_one_of_the_keepers_is_killed_too(self, name: str, tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
        for number in (0, -1):
            both = wait_until(lambda: len(found := keepers(name, tmp_path)) == 2 and found)
            os.kill(sorted(both)[number], signal.SIGKILL)
            daemon.kill()
            daemon.wait()
            wait_until(lambda: not directories(name)[0].exists())
            daemon = self.start(name, tmp_path)
        daemon.kill()
        daemon.wait()

    def test_two_executors_on_a_host(self, name: str, tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
        other = self.start(name, tmp_path)
        wait_until(lambda: len(keepers(name, tmp_path)) == 4)
        daemon.kill()
        daemon.wait()
        wait_until(lambda: len(keepers(name, tmp_path)) == 2)
        assert (directories(name)[0] / "data").exists()
        other.kill()
        other.wait()
        wait_until(lambda: not directories(name)[0].exists())

    def test_all_are_killed(self, name: str, tmp_path: Path, daemon: subprocess.Popen[str]) -> None:
        """Then the next application of this user, or the next task of this one, finds it."""
        for pid in [*wait_until(lambda: len(found := keepers(name, tmp_path)) == 2 and found), daemon.pid]:
            os.kill(pid, signal.SIGKILL)
        daemon.wait()
        wait_until(lambda: not keepers(name, tmp_path))
        assert directories(name)[0].exists()
        remove_stale()
        assert not directories(name)[0].exists()
