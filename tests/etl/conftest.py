"""The command line, as tests/test_cli.py calls it."""

from tests.test_cli import run

__all__ = ["run"]
