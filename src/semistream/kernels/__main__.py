"""Compile every kernel once, so that the first join does not wait for it."""

import importlib
import time

from semistream.kernels import notice

MODULES = (
    "hashing",
    "rows",
    "pages",
    "reading",
    "locating",
    "bloom",
    "cache",
    "cache_admission",
    "cache_values",
    "pairs",
    "multimap",
)


def main() -> None:
    """Import each kernel module; numba writes what it compiles to its on-disk cache."""
    notice.speak_always()
    start = time.perf_counter()
    for module in MODULES:
        importlib.import_module(f"semistream.kernels.{module}")
    print(f"kernels ready in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
