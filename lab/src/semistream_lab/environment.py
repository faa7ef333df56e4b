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
from pathlib import Path
from typing import Any

import semistream
from semistream.commands.doctor import java_version, package_versions
from semistream.planner.machine import cpu_model, memory_bytes, mounted, read

_PACKAGES = ("semistream", "numba", "numpy", "pyarrow", "pyspark", "duckdb", "pandas", "deltalake", "typer", "rich")


def environment(directory: Path) -> dict[str, Any]:
    """The facts, for data that lies in ``directory``; ``id`` is made from all of them."""
    from semistream.spark.session import find_java

    java = find_java()
    facts: dict[str, Any] = {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_bytes(),
        "disk": disk(directory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": None if java is None else java_version(java),
        "packages": package_versions(_PACKAGES),
        "commit": commit(),
    }
    return {"id": hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:10], **facts}


def disk(directory: Path) -> dict[str, str]:
    """File system and device of a directory."""
    device, file_system = mounted(directory)
    name = re.sub(r"p?\d+$", "", device)
    rotating = read(f"/sys/block/{name}/queue/rotational").strip()
    virtual = name.startswith(("vd", "xvd"))  # what is behind it the guest cannot know
    known = "virtual" if virtual else {"0": "solid state", "1": "rotating"}.get(rotating, "unknown")
    return {"file_system": file_system, "device": device, "kind": known}


def commit() -> str | None:
    """The commit of the source tree, with a mark when files differ from it; None outside a repository."""
    here = Path(semistream.__file__).parent
    said = [_git(here, "rev-parse", "--short=10", "HEAD"), _git(here, "status", "--porcelain", "--", str(here))]
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


if __name__ == "__main__":
    json.dump(environment(Path.cwd()), sys.stdout, indent=1)
