"""Every option of every benchmark: a value that serves is taken, one that cannot is refused before any work is done,
and the command that a run notes asks for the same cells again.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from semistream.commands.main import app
from semistream.errors import SemistreamError
from semistream_lab import plan_check, profile_bench, running, suites
from semistream_lab.cells import Cell
from semistream_lab.errors import SettingError
from semistream_lab.settings import Settings

# Of each option a value that serves and one that does not; None where there is none.
OPTIONS: dict[str, dict[str, tuple[str, str | None]]] = {
    "core": {
        "--rows": ("5000,7000,5000", "5000,0"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file/below"),
        "--quick": ("", None),
        "--repetitions": ("2", "0"),
        "--memory": ("10%,2MB,10%", "10%,lots"),
        "--arms": ("sweep,sweep,inl,duckdb_table,build", "sweep,nope"),
        "--batches": ("4", "0"),
        "--warmup": ("2", "-1"),
        "--batch-rows": ("300,70,300", "1"),
        "--columns": ("narrow,text,all,narrow", "all,none"),
        "--skews": ("1,0", "-1"),
        "--threads": ("1,2,1", "0"),
        "--cold": ("", None),
    },
    "spark": {
        "--rows": ("5000", "-5"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
        "--quick": ("", None),
        "--repetitions": ("2", "0"),
        "--memory": ("10%,20%", "0%"),
        "--arms": ("source,semistream,plain", "sweep"),
        "--batches": ("4", "0"),
        "--warmup": ("2", "0"),
        "--batch-rows": ("300", "many"),
        "--streams": ("wide,wide", "thin"),
        "--columns": ("all", "none"),
    },
    "joins": {
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
        "--quick": ("", None),
        "--sizes": ("2000,4000,2000", "10"),
        "--memory": ("10%,50%", "-1%"),
        "--skews": ("1,0.5,1.0", "nan"),
        "--layouts": ("sorted,sorted", "heap"),
        "--arms": ("mesh,sweep", "swep"),
        "--repetitions": ("2", "0"),
        "--seconds": ("0.5", "0"),
        "--warm-seconds": ("0.5", "-1"),
        "--cross": ("", None),
    },
    "pipeline": {
        "--rows": ("5000", "0"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
        "--quick": ("", None),
        "--batch-rows": ("500", "1"),
        "--batches": ("2", "0"),
        "--warmup": ("2", "0"),
        "--repetitions": ("2", "0"),
        "--memory": ("64MB", "no"),
        "--soak": ("0.1", "-1"),
        "--load": ("0.5", "1.5"),
        "--changes": ("", None),
    },
    "peers": {
        "--rows": ("5000", "0"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
        "--quick": ("", None),
        "--repetitions": ("2", "0"),
        "--memory": ("10%,20%", "lots"),
        "--peers": ("semistream,sqlite,sqlite", "oracle"),
        "--batches": ("4", "0"),
        "--warmup": ("2", "0"),
        "--batch-rows": ("300", "1"),
        "--columns": ("narrow,all", "none"),
    },
    "profile": {
        "--rows": ("5000", "0"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
        "--quick": ("", None),
        "--arm": ("sweep_groups", "inl"),
        "--memory": ("5%", "lots"),
        "--batches": ("4", "0"),
        "--warmup": ("2", "0"),
        "--batch-rows": ("300", "1"),
        "--columns": ("text", "none"),
        "--skew": ("0.5", "-1"),
        "--wait-seconds": ("inf", "-1"),
    },
    "plan": {
        "--settings": ("1", "0"),
        "--seed": ("3", "-1"),
        "--seconds": ("0.1", "0"),
        "--repetitions": ("1", "0"),
        "--out": ("somewhere", "a_file"),
        "--data": ("elsewhere", "a_file"),
    },
}
EACH = [(command, option) for command, options in OPTIONS.items() for option in options]
Ask = Callable[..., Result]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Cell]]:
    """Cells that would have been run."""
    found: list[list[Cell]] = []

    def note(run: Any, cells: list[Cell], *_: object) -> None:
        found.append(list(cells))
        found.append(run.command)

    def planned(count: int, seed: int, *_: object) -> list[dict[str, Any]]:
        found.append([Cell("plan", str(seed), {"count": count})])
        return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a_file").touch()
    monkeypatch.setattr(running, "run_cells", note)
    monkeypatch.setattr(plan_check, "run", planned)
    monkeypatch.setattr(profile_bench, "run", lambda _, cell, __: found.append([cell]))
    return found


def ask(command: str, *words: str) -> Result:
    return CliRunner().invoke(app, ["bench", command, *words])


def given(option: str, value: str) -> list[str]:
    return [option, value] if value else [option]


def test_every_option_is_tried() -> None:
    group: Any = typer.main.get_command(app)
    benches = {name: one for name, one in group.commands["bench"].commands.items() if name != "report"}
    shown = {
        name: {one.opts[0] for one in command.params if one.opts[0] != "--help"} for name, command in benches.items()
    }
    assert shown == {name: set(options) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("command, option", EACH)
def test_a_value_that_serves(ran: list[Any], command: str, option: str) -> None:
    done = ask(command, *given(option, OPTIONS[command][option][0]))
    if command != "pipeline":  # which goes on to read results that are not there
        assert done.exception is None, done.exception
    cells = ran[0]
    assert cells
    assert len({cell.key for cell in cells}) == len(cells)


@pytest.mark.parametrize("command", OPTIONS)
def test_all_together(ran: list[Any], command: str) -> None:
    ask(command, *(word for option, (value, _) in OPTIONS[command].items() for word in given(option, value)))
    assert len({cell.key for cell in ran[0]}) == len(ran[0]) > 0


@pytest.mark.parametrize("command, option", [(c, o) for c, o in EACH if OPTIONS[c][o][1] is not None])
def test_a_value_that_does_not(ran: list[Any], tmp_path: Path, command: str, option: str) -> None:
    done = ask(command, option, OPTIONS[command][option][1] or "")
    assert isinstance(done.exception, SemistreamError), (done.exception, done.output)
    assert done.exception.exit_code == 2
    assert ran == []
    assert [path.name for path in tmp_path.iterdir()] == ["a_file"]


@pytest.mark.parametrize("command, option", [(c, o) for c, o in EACH if c not in ("plan", "profile")])
def test_the_command_that_is_noted_asks_for_the_same(ran: list[Any], command: str, option: str) -> None:
    ask(command, *given(option, OPTIONS[command][option][0]))
    cells, noted = ran[:2]
    ran.clear()
    assert shlex.split(noted)[:3] == ["semistream", "bench", command]
    ask(*shlex.split(noted)[2:])
    assert ran[0] == cells
    assert ran[1] == noted


def test_changes_without_a_soak(ran: list[Any]) -> None:
    done = ask("pipeline", "--soak", "0", "--changes")
    assert "second soak" in str(done.exception)
    assert ran == []


def test_a_budget_too_small_for_the_join(tmp_path: Path) -> None:
    asked = Settings("core", rows=2_000, out=tmp_path / "out", data=tmp_path / "data", memory=("1%",))
    made: list[str] = []
    with pytest.raises(SettingError, match=r"needs .* at least: give more, or more --rows"):
        suites.prepare(asked, made.append)
    assert "DuckDB" not in " ".join(made)


def test_a_group_of_all_columns_is_no_group(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"rows": 1_000, "out": tmp_path, "data": tmp_path, "columns": ("all",)}
    with pytest.raises(SettingError, match="a column group of all columns is the store itself"):
        Settings("core", **asked, arms=("sweep_groups",))
    arms = {cell.arm for cell in suites.cells(Settings("core", **asked, arms=("sweep", "sweep_groups")))}
    assert arms == {"sweep"}


def test_data_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    asked = Settings("core", rows=1_000, more_rows=(10**13,), out=tmp_path / "out", data=tmp_path / "data")
    with pytest.raises(SettingError, match=r"takes about .* left; give fewer --rows, or name another disk"):
        suites.prepare(asked, lambda _: None)
    assert not (tmp_path / "data").exists()
