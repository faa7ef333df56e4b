"""For children that must heed permissions although the tests run as root."""

from __future__ import annotations

import ctypes

_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: with them root ignores permissions
_PR_CAPBSET_DROP = 24


def obey_permissions() -> None:
    """Give to `subprocess` as ``preexec_fn``. Users other than root have nothing to give up."""
    libc = ctypes.CDLL(None)
    for number in _CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
