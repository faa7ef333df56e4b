"""What a user asks of one lookup: one value, checked here on its own and nowhere else.

An engine adds what only it can do in a subclass. The functions that users call get their arguments from the class
(`asks`), so an option is declared once. `semistream.lookup.bind` checks what was asked against a stream and a master.

>>> LookupSpec(on="id", columns=["price"]).columns
('price',)
"""

import base64
import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar, get_args, overload

import pyarrow as pa

from semistream.as_of import VALID_FROM, VALID_TO, AsOf
from semistream.errors import ArgumentError, choose, local_path, meant
from semistream.lookup.pacing import check_wait_seconds

if TYPE_CHECKING:
    from semistream.joins.conditions import Condition
    from semistream.joins.contract import JoinSettings
    from semistream.shedding import Shed

On = str | Sequence[str] | Mapping[str, str]
How = Literal["left", "inner", "semi", "anti"]
Multiple = Literal["all", "first", "error"]
HOWS: tuple[How, ...] = get_args(How)
MULTIPLE: tuple[Multiple, ...] = get_args(Multiple)
KEEPS_HOT = ("auto", "sweep")  # algorithms that have a cache whose keys are kept between runs

P = ParamSpec("P")
First = TypeVar("First")
Store = TypeVar("Store")
Spec = TypeVar("Spec")
Result = TypeVar("Result")
OtherSpec = TypeVar("OtherSpec", bound="LookupSpec")


@dataclass(frozen=True, kw_only=True)
class LookupSpec:
    """One lookup, as it is asked for; see `semistream.join` for what the options mean."""

    on: On
    columns: Sequence[str] | None = None
    how: How = "left"
    memory: int | str = "256MB"
    algorithm: str = "auto"
    suffix: str | None = None
    defaults: Mapping[str, Any] | None = None
    as_of: str | None = None
    valid_from: str = VALID_FROM
    valid_to: str = VALID_TO
    multiple: Multiple = "all"
    status: str | None = None
    allow_empty: bool = False
    hot_keys: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, choices in _choices(type(self)).items():
            choose(name, getattr(self, name), choices)
        self._set("on", self._keys())
        if isinstance(self.columns, str):
            raise ArgumentError(f"columns={self.columns!r} must be a list of names, for example [{self.columns!r}]")
        if self.columns is not None:
            self._set("columns", tuple(self.columns))
        if self.suffix is not None and not isinstance(self.suffix, str):
            raise ArgumentError(f"suffix={self.suffix!r} must be a text, for example '_master'")
        AsOf.from_arguments(self.as_of, self.valid_from, self.valid_to)
        if self.defaults is not None and not isinstance(self.defaults, Mapping):
            raise ArgumentError(f"defaults={self.defaults!r} must be {{column: value}}")
        self._set("defaults", dict(self.defaults or {}))
        if self.hot_keys is not None:
            self._set("hot_keys", str(local_path("hot_keys", self.hot_keys).absolute()))
            if self.algorithm not in KEEPS_HOT:
                raise ArgumentError(f"hot_keys= goes with 'sweep', not algorithm={self.algorithm!r}; leave one out")
        if self.defaults and self.how != "left":
            raise ArgumentError(
                f"defaults are for rows without a match, which how={self.how!r} does not return; use how='left'"
            )
        if self.status is not None and not (isinstance(self.status, str) and self.status):
            raise ArgumentError(f"status={self.status!r} must be the name of a new column, such as '_lookup_status'")
        if self.status is not None and self.how != "left":
            raise ArgumentError(
                f"status={self.status!r} tells rows with a match from those without, and how={self.how!r} does not "
                "return both; use how='left'"
            )

    def _keys(self) -> dict[str, str]:
        """``on`` as {stream column: master column}."""
        on: object = self.on
        names = [on] if isinstance(on, str) else on
        if isinstance(names, Sequence):
            names = {name: name for name in names}
        mapping = dict(names) if isinstance(names, Mapping) else {}
        if not mapping or not all(isinstance(a, str) and isinstance(b, str) for a, b in mapping.items()):
            raise ArgumentError(
                f"on={on!r} is not usable; give a column name, a list of names, or {{stream column: master column}}"
            )
        return mapping

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def keys(self) -> dict[str, str]:
        """{stream column: master column}; empty where a condition compares other columns."""
        assert isinstance(self.on, dict)
        return self.on

    @property
    def moment(self) -> AsOf | None:
        """The columns of time by which the version of a master's row is chosen."""
        return AsOf.from_arguments(self.as_of, self.valid_from, self.valid_to)

    def copy_to(self, kind: type[OtherSpec], **changes: Any) -> OtherSpec:
        """The same lookup as another engine asks it: all options that both have, but for the ``changes``."""
        own = {item.name for item in fields(self)}
        shared = {item.name: getattr(self, item.name) for item in fields(kind) if item.init and item.name in own}
        return kind(**shared | changes)

    def as_json(self) -> dict[str, Any]:
        """For `json`; default values that it does not know keep their types."""
        told = {item.name: getattr(self, item.name) for item in fields(self)}
        return told | {"defaults": {name: _told(value) for name, value in (self.defaults or {}).items()}}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        return cls(**{**told, "defaults": {name: _known(value) for name, value in told["defaults"].items()}})


@dataclass(frozen=True, kw_only=True)
class JoinSpec(LookupSpec):
    """A lookup by the embedded engine: `semistream.join`."""

    on: On = ()
    condition: "Condition | None" = None
    ordered: bool = False
    settings: "JoinSettings | None" = None
    shed: "Shed | None" = None
    wait_seconds: float | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait_seconds is not None:
            check_wait_seconds(self.wait_seconds)
        if self.threads is not None and (type(self.threads) is not int or self.threads < 1):
            raise ArgumentError(
                f"threads={self.threads!r} must be a whole number from 1 on; without it, all cores are used that this "
                "process may use"
            )
        if self.condition is None:
            return
        if self.ordered:
            raise ArgumentError("ordered=True goes with on=, not with condition=; sort the output instead")
        if self.as_of is not None or self.multiple != "all":
            what = "as_of=" if self.as_of is not None else f"multiple={self.multiple!r}"
            raise ArgumentError(f"{what} goes with on=, not with condition=: it is about the rows of a key")
        if self.shed is not None:
            raise ArgumentError(
                "shed= goes with on=, not with condition=: rows that are shed are joined later by their key"
            )

    def _keys(self) -> dict[str, str]:
        absent = self.on is None or self.on == ()
        if self.condition is None and not absent:
            return super()._keys()
        if self.condition is None or not (absent or self.on == {}):
            raise ArgumentError("a join needs either on=, the key's columns, or condition=, another comparison")
        return {}


class asks(Generic[P, Spec]):  # noqa: N801 - it decorates
    """A function of (a stream,) a store and a spec, as users call it: with the spec's fields as named arguments."""

    def __init__(self, spec: Callable[P, Spec]) -> None:
        self.spec = spec

    @overload
    def __call__(self, function: Callable[[Store, Spec], Result], /) -> Callable[Concatenate[Store, P], Result]: ...

    @overload
    def __call__(
        self, function: Callable[[First, Store, Spec], Result], /
    ) -> Callable[Concatenate[First, Store, P], Result]: ...

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        shown = inspect.signature(function)
        *own, _ = shown.parameters.values()
        options = inspect.signature(self.spec).parameters
        signature = shown.replace(parameters=[*own, *options.values()])

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for name in named:
                if name not in signature.parameters:
                    said = f"{function.__name__} has no argument {name!r}{meant(name, options)}"
                    raise ArgumentError(f"{said}; it has {', '.join(signature.parameters)}")
            bound = signature.bind(*given, **named).arguments
            values = [bound.pop(one.name) for one in own]
            return function(*values, self.spec(**bound))  # type: ignore[call-arg] # `bind` has seen to it

        call.__signature__ = signature  # type: ignore[attr-defined] # what help() and editors show
        return call


def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    """The options of a spec that are ``Literal``s, with their choices."""
    found = {}
    for base in reversed(kind.__mro__):
        known = vars(sys.modules[base.__module__])
        for name, hint in inspect.get_annotations(base).items():
            hint = known.get(hint) if isinstance(hint, str) else hint
            if isinstance(hint, type(How)):
                found[name] = get_args(hint)
    return found


def _told(value: object) -> object:
    """A value for JSON: as it is, or as Arrow writes it."""
    if value is None or isinstance(value, str | int | float):
        return value
    batch = pa.record_batch({"value": pa.array([value])})
    with pa.BufferOutputStream() as file, pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return {"arrow": base64.b64encode(file.getvalue()).decode()}


def _known(told: object) -> object:
    if not isinstance(told, dict):
        return told
    return pa.ipc.open_stream(base64.b64decode(told["arrow"])).read_all().column("value")[0].as_py()
