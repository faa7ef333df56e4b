"""Which machine this is, and where its calibration lies. Facts only, no host name: benchmarks record them too."""

import hashlib
import json
import os
import platform
import re
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.machine()


def memory_bytes() -> int:
    """The machine's memory, or the limit of the container we run in when that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = read("/sys/fs/cgroup/memory.max").strip()
    return min(whole, int(limit)) if limit.isdigit() else whole


def mounted(directory: Path) -> tuple[str, str]:
    at = next((place for place in (directory, *directory.parents) if place.exists()), Path("/")).resolve()
    mounts = [line.split() for line in read("/proc/mounts").splitlines()]
    here = [entry for entry in mounts if at.is_relative_to(entry[1].replace("\\040", " "))]
    device, _, kind = max(here, key=lambda entry: len(entry[1]))[:3] if here else ("unknown", "", "unknown")
    return Path(device).name, kind


def read(path: str | Path) -> str:
    """A small file of the system; empty where it is not there."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def fingerprint() -> dict[str, Any]:
    """What seconds depend on."""
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "architecture": platform.machine(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
    }
    return {"id": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10], **facts}


def calibration_path() -> Path:
    """The file of this machine's calibration, there or not."""
    if given := os.environ.get("SEMISTREAM_CALIBRATION"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "semistream" / "calibration.json"
