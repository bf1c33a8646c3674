"""What the C library keeps of the memory that bodies pass through."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from test.support.processes import ROOT

FAULTS = """
import resource, sys
from keelstore.common.allocator import keep_buffers
print(keep_buffers())
def segment():
    return [bytearray(1 << 20) for _ in range(3)]
segment()
segment()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    segment()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**environ: str) -> tuple[bool, int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, cwd=ROOT, check=True, env={**clean, **environ})
    said, faults = done.stdout.split()
    return said == "True", int(faults)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"), reason="of glibc")
def test_buffers_are_used_again_without_asking_the_kernel():
    done, faults = run()
    assert done
    assert faults < 50 * 3 * 256 // 10  # pages of 4 KiB that 50 segments have


def test_what_the_environment_says_of_memory_is_left_alone():
    assert run(MALLOC_TRIM_THRESHOLD_="131072")[0] is False
