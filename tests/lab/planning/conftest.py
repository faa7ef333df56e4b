"""The store and the joins that the planner's own tests ask about."""

from __future__ import annotations

from tests.planner.conftest import no_calibration, question, store

__all__ = ["no_calibration", "question", "store"]
