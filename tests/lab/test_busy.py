"""Whether a machine was too busy for its figures to be believed: decided on what a kernel wrote, taken as text."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semistream_lab import busy, commands, suites
from semistream_lab.cells import Cell
from semistream_lab.settings import Settings
from tests.lab.samples import result

# Two cores, five seconds apart: four busy loops and more were at work. The two below are made from it.
LOADED = (
    "cpu  2696280 46968 211270 1888462 5754 0 7835 17772 0 0\ncpu0 1326859 25552 96650 975419 1040 0 2492 8764 0 0\n",
    "cpu  2696995 47192 211336 1888462 5754 0 7835 17773 0 0\ncpu0 1327217 25664 96683 975419 1040 0 2492 8765 0 0\n",
)
QUIET = (
    "cpu  2697011 47192 211340 1888470 5754 0 7835 17773 0 0\n",
    "cpu  2697514 47192 211352 1888948 5756 0 7836 17775 0 0\n",
)
STOLEN = (QUIET[0], "cpu  2697411 47192 211352 1888770 5756 0 7836 18073 0 0\n")
PRESSURE = """some avg10=97.89 avg60=97.22 avg300=95.50 total=12668414701
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
PROCESS = "26819 (a) name (x) R 26669 26669 3890 0 -1 4194304 103 0 0 0 431 72 5 6 20 0 1 0 2441002 3133440 405"


def judged(texts: tuple[str, str], ours: int) -> str | None:
    before, after = (busy.machine_ticks(text) for text in texts)
    return busy.verdict(busy.shares(before, after, ours))


def test_others_at_work() -> None:
    # 1006 ticks in all, 431 of them ours
    assert judged(LOADED, 431) == "busy: 57 % of the machine's CPU time went to others"
    assert judged(LOADED, 1006) is None


def test_our_own_work_does_not_count() -> None:
    assert judged(QUIET, 500) is None
    assert judged(QUIET, 0) == "busy: 52 % of the machine's CPU time went to others"


def test_what_the_hypervisor_took() -> None:
    said = "busy: 31 % of the machine's CPU time went to others, of which the hypervisor took 30 %"
    assert judged(STOLEN, 400) == said


def test_one_process_and_pressure() -> None:
    assert busy.process_ticks(PROCESS) == (26669, 503)
    assert busy.pressure_seconds(PRESSURE) == pytest.approx(12668.414701)


def test_one_sentence_for_all() -> None:
    quiet, loud = {"others_share": 0.02}, {"others_share": 0.43}
    assert busy.summary([quiet, quiet]) is None
    said = "the machine was busy: 43 % of its CPU time went to others; these rates are not to be believed"
    assert busy.summary([loud]) == said
    assert "busy: in 2 of 3 runs 43 to 90 % of its" in str(busy.summary([quiet, loud, {"others_share": 0.9}]))


def test_a_short_part_of_a_long_run() -> None:
    watch = busy.Watch()
    quiet, loud = busy.Ticks(100, 0, 900), busy.Ticks(180, 0, 1020)
    watch._looks = [(0.0, busy.Ticks(0, 0, 0), 0), (100.0, quiet, 100), (102.0, loud, 110)]
    timed = watch.timed(100.5, 101.5)
    assert timed == {"others_share_timed": 0.35}
    said = busy.verdict({"others_share": 0.06, **timed})
    assert said == "busy: 35 % of the machine's CPU time went to others"
    assert busy.summary([{"others_share": 0.06, **timed}]) is not None
    assert busy.verdict({"others_share": 0.06, **watch.timed(1.0, 99.0)}) is None


def test_a_process_below_us_is_ours() -> None:
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    with busy.Watch() as watch:
        began = sum(watch._seen.values())
        child = subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE)
        until = time.monotonic() + 300
        while sum(watch._seen.values()) - began < 30 and time.monotonic() < until:
            time.sleep(0.05)
        child.communicate(b"\n")
    assert sum(watch._seen.values()) - began >= 30  # ticks of 10 ms
    assert set(watch.facts) >= {"others_share", "steal_share"}
    assert all(0 <= share <= 1 for share in watch.facts.values())


def test_it_is_said_in_the_terminal_and_in_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Settings("core", rows=1000, out=tmp_path / "out", data=tmp_path, arms=("build",), repetitions=1)
    came: dict[str, Any] = {**result(1e5), "checksum": {}, "others_share": 0.43, "peak_bytes": 1}

    def stand_in(cell: Cell, _: Settings) -> dict[str, Any]:
        return {**came, "busy": busy.verdict(came)}

    monkeypatch.setattr(suites, "run_cell", stand_in)
    monkeypatch.setattr(suites, "prepare", lambda *_: None)
    commands.run_suite(asked, Console(stderr=True, width=300))
    said = capsys.readouterr().err
    assert "busy: 43 % of the machine's CPU time went to others" in said
    assert "the machine was busy: 43 % of its CPU time went to others; these rates are not to be believed" in said
    assert '"busy": "busy: 43 %' in (asked.out / "results.jsonl").read_text()
    assert "not to be believed" in (asked.out / "report.html").read_text()
