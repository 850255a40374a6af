"""What the C library does with memory that a training step frees: keep it for the next.

By default glibc gives it back to the system once some megabytes at the end of its heap are free, and every
step asks for the same megabytes again: their pages are mapped and cleared anew. Kept, a step of 160 small
networks takes a tenth less time. It is a setting of the whole process, so the commands make it, never the
library.
"""

from __future__ import annotations

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of mallopt's settings
KEPT = 256 * 2**20  # bytes that may lie free at the end of the heap
APART = 32 * 2**20  # larger pieces go back to the system one by one, as ever


def keep_freed_memory() -> bool:
    """For the rest of this process; not where there is no such setting, or the user has made it."""
    if not sys.platform.startswith("linux") or "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*s) for s in ((TRIM_THRESHOLD, KEPT), (MMAP_THRESHOLD, APART)))
