"""Which machine this is, and where its calibration lies."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

VARIABLE = "SEMISTREAM_CALIBRATION"


def cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def fingerprint() -> dict[str, Any]:
    """What seconds depend on; no host name."""
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "architecture": platform.machine(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
    }
    return {"id": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10], **facts}


def calibration_path() -> Path:
    """The file of this machine's calibration, there or not."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "semistream" / "calibration.json"
