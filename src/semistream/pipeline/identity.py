"""Which state this is: an id, and where its directory was when it was last used.

One that was renamed is the same directory (device and inode); one that was moved or restored left nothing where it
was. A copy is refused: it and its original would each load rows of their own under the same batch numbers.
"""

import os
import uuid
from pathlib import Path
from typing import Any

from semistream.durable import read_once, rewrite
from semistream.errors import StateError

_FILE = "state.json"


def claim(root: Path) -> None:
    """Note that the state is here; refuse a copy whose original is still there. The caller has the lock."""
    place, about = root.resolve(), root.stat()
    here = {"path": str(place), "device": about.st_dev, "inode": about.st_ino}
    known = _read(root)
    if known is None:
        rewrite(root / _FILE, {"id": uuid.uuid4().hex, **here})
        return
    if all(known[word] == value for word, value in here.items()):
        return
    renamed = (known["device"], known["inode"]) == (about.st_dev, about.st_ino)
    if not renamed and _is_original(Path(known["path"]), place, known["id"]):
        raise StateError(
            f"{root} is a copy of the state {known['path']}, which is still there. Both would load rows under the same "
            "batch numbers. Go on with the original; or, if the copy is to take its place, move the original away or "
            "delete it, and start again"
        )
    rewrite(root / _FILE, {**known, **here})


def _is_original(former: Path, place: Path, wanted: str) -> bool:
    if former == place:  # restored where it was
        return False
    try:
        there = os.path.lexists(former) and not former.samefile(place)
        found = _read(former) if there else None
    except OSError as error:
        raise StateError(
            f"{place} was at {former} before, and whether a state is still there cannot be seen ({error.strerror}). "
            f"If it is gone for good, delete {place / _FILE} and start again"
        ) from error
    return found is not None and found["id"] == wanted


def _read(root: Path) -> dict[str, Any] | None:
    return read_once(root / _FILE, ("device", "inode"), "use the state where it is now, once you know it is no copy")
