"""The workloads, by name, and how one is made from the texts of a command line or of Spark's options."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from semistream.errors import ArgumentError, choose
from semistream.workloads.contract import Workload
from semistream.workloads.retail import RetailWorkload
from semistream.workloads.tpch import TpchWorkload
from semistream.workloads.weather import WeatherWorkload
from semistream.workloads.zipf import ZipfWorkload

_ALL: tuple[type[Any], ...] = (ZipfWorkload, RetailWorkload, TpchWorkload, WeatherWorkload)
WORKLOADS: dict[str, type[Any]] = {workload.name: workload for workload in _ALL}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def make_workload(name: str, **options: Any) -> Workload:
    """A workload from its options, which may be texts.

    Names are taken as Spark writes them, too: ``masterSkew`` is ``master_skew``.
    """
    workload = WORKLOADS[choose("workload", name, tuple(WORKLOADS))]
    kinds = option_types(workload)
    known = {_plain(option): option for option in kinds} | {
        _plain(alias): option for alias, option in workload.aliases.items()
    }
    given: dict[str, Any] = {}
    for option, value in options.items():
        if _plain(option) not in known:
            raise ArgumentError(f"workload {name} has no option {option!r}; its options are {', '.join(kinds)}")
        target = known[_plain(option)]
        if target in given:
            raise ArgumentError(f"option {option!r} of workload {name} is given twice, once as {target!r}")
        given[target] = _parsed(option, value, kinds[target])
    missing = [
        field.name
        for field in dataclasses.fields(workload)
        if field.default is dataclasses.MISSING and field.name not in given
    ]
    if missing:
        raise ArgumentError(f"workload {name} needs the option {missing[0]!r}")
    made: Workload = workload(**given)
    return made


def option_types(workload: type[Any]) -> dict[str, Any]:
    """The options of a workload and their types."""
    hints = typing.get_type_hints(workload)
    return {field.name: hints[field.name] for field in dataclasses.fields(workload)}


def settings(workload: Workload) -> dict[str, Any]:
    """The options of a workload that was made, as plain values."""
    values: Mapping[str, Any] = dataclasses.asdict(workload)  # type: ignore[call-overload]
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _parsed(option: str, value: Any, kind: Any) -> Any:
    """A value in the option's type; what is no text must fit already."""
    if typing.get_origin(kind) is Literal:
        return choose(option, value, typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
        if value is None:
            return None
    if kind is bool:
        known = _TRUTHS.get(str(value).lower())
        if known is None:
            raise ArgumentError(f"{option}={value!r} must be true or false")
        return known
    try:
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        return kind(value)
    except (TypeError, ValueError, OverflowError):
        wanted = {int: "a whole number", float: "a number"}.get(kind, f"a {kind.__name__}")
        raise ArgumentError(f"{option}={value!r} must be {wanted}") from None
