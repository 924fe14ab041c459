"""A read behind the end of an array, which AddressSanitizer has to report: the control of test_build.py, not a test."""

from types import ModuleType

import numpy as np


def test_reading_past_the_end(native: ModuleType) -> None:
    data = np.ones(4096, dtype=np.uint8)
    native.read_bytes(data.ctypes.data, data.size + 64, 1)
