"""What a step is: a frozen value that owns its form in a file, its check, its effect on the rows and their routes.

Adding one is a file and a line: docs/adding_a_step.md.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from semistream.errors import ArgumentError, StepError, meant
from semistream.pipeline.decision import Masters
from semistream.pipeline.expressions import columns_of
from semistream.pipeline.memory import Claim, Memory
from semistream.pipeline.routes import PREFIX
from semistream.pipeline.staging import Route

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semistream.changes.duplicates import SeenKeys
    from semistream.pipeline.layout import Layout, Schemas
    from semistream.pipeline.steps.lookup import Lookup


@dataclass
class Known:
    """What is known of a row at some step, before Spark starts: columns are followed from the source on."""

    types: dict[str, pa.DataType | None]  # of each column, None when it is Spark that will tell
    source: frozenset[str] | None  # the source's own columns; None while Spark has not told
    number: int = 0  # of the step
    last: bool = False  # is it the last one?
    given_later: set[str] = field(default_factory=set)  # surrogate keys that are filled in after all steps
    several: str = ""  # the lookup that may give several rows for one, if there was one
    deduplicated: bool = False

    def need(self, names: Iterable[str], word: str) -> None:
        """Refuse columns that are not there; ``word`` is the setting that names them."""
        for name in names:
            if name in self.given_later:
                raise self.error(word, f"{name!r} is not known yet for members that are made; put this step before it")
            if self.source is not None and name not in self.types:
                like = meant(name, self.types)
                raise self.error(word, f"there is no column {name!r} here; there are {list(self.types)}{like}")

    def need_used(self, expression: str, word: str) -> None:
        """Refuse an expression in Spark SQL that is none, or that uses columns that are not there."""
        try:
            used = columns_of(expression)
        except ArgumentError as error:
            raise self.error(word, str(error)) from error
        self.need(used, word)

    def add(self, name: str, kind: pa.DataType | None, word: str) -> None:
        """A new column."""
        if name.lower().startswith(PREFIX):
            raise self.error(word, f"{name!r}: names that begin with {PREFIX!r} are used by the pipeline")
        if name in self.types:
            raise self.error(word, f"there is a column {name!r} already; give the new one a name of its own")
        self.types[name] = kind

    def error(self, word: str, message: str) -> StepError:
        """An error of this step; ``word`` is the setting that is wrong."""
        return StepError(self.number, word, message)


class Step(ABC):
    """What a pipeline does to its rows at one point. The first two methods are a must."""

    @abstractmethod
    def check(self, known: Known) -> None:
        """Raise for what is wrong with it, before Spark starts; add to ``known`` the columns that it makes."""

    @abstractmethod
    def describe(self, memory: Memory) -> list[str]:
        """Lines for people; ``memory`` is what each lookup got."""

    def apply(self, frame: "DataFrame", layout: "Layout", masters: Masters) -> "DataFrame":
        """The rows after it. None is taken out of the frame: one that goes elsewhere leaves by `routes.leave`."""
        return frame

    @property
    def lookups(self) -> "tuple[Lookup, ...]":
        """Itself, if it looks masters up: lookups that stand side by side are ordered by cost, and done together."""
        return ()

    @property
    def remembers(self) -> tuple[str, ...]:
        """The business key that is remembered of all rows that were loaded, if it needs one."""
        return ()

    @property
    def in_driver(self) -> bool:
        """Does the driver read rows or keys for it?"""
        return bool(self.remembers)

    @property
    def table(self) -> dict[str, str] | None:
        """The columns of the table, {name in the table: column}, if it says them."""
        return None

    def claim(self, seen: "SeenKeys | None") -> Claim | None:
        """What it needs memory for; ``seen`` are the keys that were loaded, None while nothing runs."""
        return None

    def routes(self, number: int, layout: "Layout", schemas: "Schemas", staging: str, started: float) -> list[Route]:
        """Routes of its own for rows, into files in ``staging``, where it stands as the number-th."""
        return []


@dataclass(frozen=True)
class StepForm:
    """A step in a file: a table with a word of its own, and settings beside it."""

    word: str
    read: Callable[..., Step]  # of the word's value, the file's directory and the settings
    settings: tuple[str, ...] = ()

    @staticmethod
    def settings_of(function: Callable[..., Step]) -> tuple[str, ...]:
        """All arguments of the function that makes a step, but the first, which is the word's value."""
        return tuple(inspect.signature(function).parameters)[1:]
