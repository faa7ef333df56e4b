"""The command line, as tests/commands/test_main.py calls it."""

from tests.commands.test_main import run

__all__ = ["run"]
