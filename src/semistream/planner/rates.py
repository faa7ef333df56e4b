"""From counts to seconds: what a join's model counts, times what each count costs on this machine.

The terms are fitted, for every join, to short runs of the join itself (`semistream calibrate`, of semistream-lab), so
they hold its real overhead.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import CalibrationError
from semistream.joins import FORMER_NAMES
from semistream.joins.contract import Prediction
from semistream.planner.machine import calibration_path, fingerprint
from semistream.rows import is_binary, is_text
from semistream.stores.contract import StoreFacts

_FORMAT = 1


@dataclass(frozen=True)
class Terms:
    """Seconds beside the device's, which takes s + t·b for a request."""

    read: float  # of a request
    page: float  # of R that was read
    miss: float  # of a tuple that waits: it is inserted, met, put out and deleted
    hit: float  # of a tuple that probes the cache and is put out
    piece: float  # of the stream; pieces are small where the budget is
    far: float = 0.0  # of a cached row that is seldom asked for: the processor's own caches do not hold it


@dataclass(frozen=True)
class Costs:
    machine: dict[str, Any]
    joins: dict[str, Terms]
    keys: dict[str, float] = field(default_factory=dict)  # encoding a key, by its type
    steps: dict[str, float] = field(default_factory=dict)  # the papers' terms: probe, insert, delete, output
    device: dict[str, float] = field(default_factory=dict)  # c_IO(b) = s + t·b, cached and direct
    pace: float = 0.0  # rows/s of one run that is always the same (`semistream_lab.pace`); 0 where it is not known

    def rate(self, name: str, said: Prediction, facts: StoreFacts) -> float:
        """Rows/s of a join on one core (a core a node), for what its model says."""
        terms = self.joins[name]
        read = facts.device.seconds(1, (said.pages_per_read + said.gap_pages) * facts.page_bytes) + terms.read
        read += said.pages_per_read * terms.page
        seconds = read / said.tuples_per_read + (1 - said.hit_ratio) * terms.miss + said.hit_ratio * terms.hit
        seconds += terms.piece / said.piece_rows + said.far_ratio * terms.far
        return min(said.nodes, self.machine.get("cores", 1)) / (seconds + self.key_seconds(facts))

    def key_seconds(self, facts: StoreFacts) -> float:
        """What encoding this store's key costs more than an integer's, for which the terms are fitted."""
        more = sum(self.keys.get(key_kind(kind), 0.0) for kind in facts.key_types)
        return max(0.0, more - self.keys.get("integer", 0.0))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".draft")
        draft.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)

    @staticmethod
    def load(path: Path) -> "Costs":
        """Read a file that was measured on this machine; any other is refused."""
        costs, here = _read(path.read_text(encoding="utf-8"), str(path)), fingerprint()
        if costs.machine.get("id") != here["id"]:
            raise CalibrationError(
                f"{path} was measured on another machine ({_words(costs.machine)}; this one is {_words(here)}); run "
                "'semistream calibrate' here, or remove the file to use the figures that come with semistream"
            )
        return costs


@cache
def default_costs() -> Costs:
    """The figures that come with semistream; good for ratios, not for this machine's seconds."""
    return _read(Path(__file__).with_name("costs.json").read_text(encoding="utf-8"), "costs.json")


def current_costs() -> Costs:
    """This machine's own, or those that come with semistream."""
    path = calibration_path()
    return Costs.load(path) if path.exists() else default_costs()


def key_kind(kind: pa.DataType) -> str:
    """The key types that differ in cost."""
    if is_text(kind):
        return "string"
    if is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    return "decimal" if pa.types.is_decimal(kind) else "integer"


def _read(text: str, name: str) -> Costs:
    try:
        numbers = json.loads(text)
        if numbers.pop("format") != _FORMAT:
            raise CalibrationError(f"{name} is of another version of semistream; run 'semistream calibrate' again")
        joins = {FORMER_NAMES.get(name, name): Terms(**terms) for name, terms in numbers.pop("joins").items()}
        return Costs(joins=joins, **numbers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CalibrationError(
            f"{name} is not a calibration ({error}); remove it, and run 'semistream calibrate'"
        ) from error


def _words(machine: dict[str, Any]) -> str:
    cores = machine.get("cores", "?")
    return f"{machine.get('cpu', 'unknown processor')}, {cores} {'core' if cores == 1 else 'cores'}"
