"""The checksum of bytes that left the device: CRC-64/NVME, by the native kernels or, much slower, by numpy.

Both give the same number, so what one machine wrote another can read. See csrc/checksum.h for the definition.
"""

import numpy as np

from kvpager import native


def checksum(page: np.ndarray) -> int:
    """CRC-64 of ``page`` (uint8, contiguous)."""
    kernels = native.module()
    if kernels is None:
        return _by_numpy(page)
    return int(kernels.checksum(page.ctypes.data, page.nbytes))


def copy_checksum(target: np.ndarray, source: np.ndarray) -> int:
    """Copies ``source`` to ``target`` (uint8, contiguous, of equal length, apart) and returns the CRC-64 of it."""
    kernels = native.module()
    if kernels is None:
        target[:] = source
        return _by_numpy(target)
    return int(kernels.copy_checksum(target.ctypes.data, source.ctypes.data, source.nbytes))


def _by_numpy(page: np.ndarray) -> int:
    raise NotImplementedError
