"""One line on standard error when kernels are compiled: the first use takes most of a minute, and should say why.

It is printed where somebody can see it: when standard error is a terminal, and by the command line always
(`speak_always`). A library in another program, or a Spark worker, stays silent. Nothing is said when compiled code is
found on disk.
"""

import sys
from typing import Any

TEXT = "semistream: compiling kernels for this machine, once: about 40 s"
_always = False


def speak_always() -> None:
    """Say it also where standard error is a file or a pipe."""
    global _always  # noqa: PLW0603 - a choice of the whole process
    _always = True


def listen() -> None:
    """Have numba tell when it is about to compile; called once, where kernels are defined."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        said = False

        def on_start(self, started: Any) -> None:
            module = started.data["dispatcher"].py_func.__module__ or ""
            if not self.said and module.startswith("semistream.kernels."):
                self.said = True
                _say()

        def on_end(self, ended: Any) -> None:
            del ended

    event.register("numba:compile", Notice())


def _say() -> None:
    if sys.stderr is not None and (_always or sys.stderr.isatty()):
        print(TEXT, file=sys.stderr, flush=True)
