"""What holds for all tests: no example is too slow for Hypothesis."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes, or how long it takes to make one up, says something of the machine only.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")
