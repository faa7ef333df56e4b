"""Compile every kernel once, so that the first join does not wait for it."""

import time

from semistream import kernels

if __name__ == "__main__":
    kernels.speak_always()
    start = time.perf_counter()
    kernels.load_all()
    print(f"kernels ready in {time.perf_counter() - start:.1f} s")
