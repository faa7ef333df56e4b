"""What a result depends on besides the code: machine, disk, versions. Recorded with every result, by a short id.

Facts only; no host name and no path, so that results can be shown to others.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from semistream.planner.machine import cpu_model

PACKAGES = ("semistream", "numba", "numpy", "pyarrow", "pyspark", "duckdb", "pandas", "deltalake", "typer", "rich")


def environment(directory: Path) -> dict[str, Any]:
    """The facts, for data that lies in ``directory``; ``id`` is made from all of them."""
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "disk": disk(directory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java(),
        "packages": package_versions(),
        "commit": commit(),
    }
    return {"id": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10], **facts}


def memory_bytes() -> int:
    """The machine's memory, or the limit of the container we run in when that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(whole, int(limit)) if limit.isdigit() else whole


def disk(directory: Path) -> dict[str, Any]:
    """File system and device of a directory."""
    at = next((place for place in (directory, *directory.parents) if place.exists()), Path("/")).resolve()
    mounts = [line.split() for line in _read("/proc/mounts").splitlines()]
    here = [entry for entry in mounts if at.is_relative_to(_unescaped(entry[1]))]
    device, _, kind = max(here, key=lambda entry: len(entry[1]))[:3] if here else ("unknown", "", "unknown")
    name = re.sub(r"p?\d+$", "", Path(device).name)
    rotating = _read(f"/sys/block/{name}/queue/rotational").strip()
    virtual = name.startswith(("vd", "xvd"))  # what is behind it the guest cannot know
    known = "virtual" if virtual else {"0": "solid state", "1": "rotating"}.get(rotating, "unknown")
    return {"file_system": kind, "device": Path(device).name, "kind": known}


def package_versions() -> dict[str, str]:
    """Versions of the packages that matter, of those that are there."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def java() -> str | None:
    """The version of the Java that Spark would run on."""
    from semistream.spark.java import find_java

    home = find_java()
    if home is None:
        return None
    found = re.search(r'^JAVA_VERSION="(.+)"', _read(str(home / "release")), re.MULTILINE)
    return found[1] if found else "unknown"


def commit() -> str | None:
    """The commit of the source tree, with a mark when files differ from it; None outside a repository."""
    here = Path(__file__).parent
    said = [_git(here, "rev-parse", "--short=10", "HEAD"), _git(here, "status", "--porcelain", "--", str(here.parent))]
    if said[0] is None:
        return None
    return said[0] + (" with changes" if said[1] else "")


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],  # noqa: S607 - git is where the PATH says
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _unescaped(mount: str) -> str:
    return mount.replace("\\040", " ")


if __name__ == "__main__":
    json.dump(environment(Path.cwd()), sys.stdout, indent=1)
