"""The workloads, by name, and how one is made from the texts of a command line or of Spark's options."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from semistream.errors import ArgumentError, choose
from semistream_lab.workloads.contract import Workload
from semistream_lab.workloads.retail import RetailWorkload
from semistream_lab.workloads.tpch import TpchWorkload
from semistream_lab.workloads.weather import WeatherWorkload
from semistream_lab.workloads.zipf import ZipfWorkload

_ALL: tuple[type[Workload], ...] = (ZipfWorkload, RetailWorkload, TpchWorkload, WeatherWorkload)
WORKLOADS: dict[str, type[Workload]] = {workload.name: workload for workload in _ALL}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def make_workload(name: str, **options: Any) -> Workload:
    """A workload from its options, which may be texts.

    Names are taken as Spark writes them, too: ``masterSkew`` is ``master_skew``.
    """
    workload: Any = WORKLOADS[choose("workload", name, tuple(WORKLOADS))]
    given = parse_options(f"workload {name}", workload, options, workload.aliases)
    missing = [
        field.name
        for field in dataclasses.fields(workload)
        if field.default is dataclasses.MISSING and field.name not in given
    ]
    if missing:
        raise ArgumentError(f"workload {name} needs the option {missing[0]!r}")
    made: Workload = workload(**given)
    return made


def parse_options(
    what: str, settings_type: type[Any], options: Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Options by the names and in the types of a dataclass's fields."""
    kinds = option_types(settings_type)
    known = {plain_name(option): option for option in kinds}
    known |= {plain_name(alias): option for alias, option in (aliases or {}).items()}
    given: dict[str, Any] = {}
    for option, value in options.items():
        target = known.get(plain_name(option))
        if target is None:
            raise ArgumentError(f"{what} has no option {option!r}; its options are {', '.join(kinds)}")
        if target in given:
            raise ArgumentError(f"option {option!r} of {what} is given twice, once as {target!r}")
        given[target] = _parsed(option, value, kinds[target])
    return given


def option_types(settings_type: type[Any]) -> dict[str, Any]:
    """The options of a workload, or of any dataclass, and their types."""
    hints = typing.get_type_hints(settings_type)
    return {field.name: hints[field.name] for field in dataclasses.fields(settings_type) if field.init}


def plain_name(name: str) -> str:
    """An option's name without case and joints, as Spark gives it."""
    return name.replace("_", "").replace("-", "").lower()


def settings(workload: Workload) -> dict[str, Any]:
    """The options of a workload that was made, as plain values."""
    values: Mapping[str, Any] = dataclasses.asdict(workload)  # type: ignore[call-overload]
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


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
