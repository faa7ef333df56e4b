"""Compiled kernels: hashing, packed rows, pages, the tuple cache and the frequency sketch.

Importing one of them loads numba and machine code (about half a second), so ``kernels.pages`` is imported when it is
first used. They are compiled once per machine, or ahead of time by ``python -m semistream.kernels``. That takes most of
a minute, so a line on standard error says why: on a terminal, and by the command line always; anything else stays
silent.
"""

import importlib
import pkgutil
import sys
from typing import Any

NOTICE = "semistream: compiling kernels for this machine, once: about 40 s"
_always = False
_MODULES = [module.name for module in pkgutil.iter_modules(__path__)]


def __getattr__(name: str) -> Any:
    """A module of kernels, imported when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def load_all() -> None:
    """Import every module of kernels; numba compiles what it does not find in its on-disk cache."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")


def speak_always() -> None:
    """Say that kernels are compiled also where standard error is a file or a pipe."""
    global _always  # noqa: PLW0603 - a choice of the whole process
    _always = True


def listen() -> None:
    """Have numba tell when it is about to compile; called once, where kernels are defined."""
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        said = False

        def on_start(self, started: Any) -> None:
            module = started.data["dispatcher"].py_func.__module__ or ""
            if not self.said and module.startswith("semistream.kernels."):
                self.said = True
                if sys.stderr is not None and (_always or sys.stderr.isatty()):
                    print(NOTICE, file=sys.stderr, flush=True)

        def on_end(self, _ended: Any) -> None: ...

    event.register("numba:compile", Listener())
