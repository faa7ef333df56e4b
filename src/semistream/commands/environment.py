"""What this machine is and has: memory, disk, packages, Java. Facts only; no host name and no path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any


def memory_bytes() -> int:
    """The machine's memory, or the limit of the container we run in when that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(whole, int(limit)) if limit.isdigit() else whole


def disk(directory: Path) -> dict[str, Any]:
    """File system and device of a directory."""
    at = next((place for place in (directory, *directory.parents) if place.exists()), Path("/")).resolve()
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    here = [entry for entry in mounts if at.is_relative_to(entry[1].replace("\\040", " "))]
    device, _, kind = max(here, key=lambda entry: len(entry[1]))[:3] if here else ("unknown", "", "unknown")
    name = re.sub(r"p?\d+$", "", Path(device).name)
    rotating = _read(f"/sys/block/{name}/queue/rotational").strip()
    virtual = name.startswith(("vd", "xvd"))  # what is behind it the guest cannot know
    known = "virtual" if virtual else {"0": "solid state", "1": "rotating"}.get(rotating, "unknown")
    return {"file_system": kind, "device": Path(device).name, "kind": known}


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are there."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def java() -> str | None:
    """The version of the Java that Spark would run on."""
    from semistream.spark.session import find_java

    home = find_java()
    if home is None:
        return None
    found = re.search(r'^JAVA_VERSION="(.+)"', _read(str(home / "release")), re.MULTILINE)
    return found[1] if found else "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
