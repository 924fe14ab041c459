"""The checksum of bytes that left the device: CRC-64/NVME, by the native kernels or, much slower, by numpy.

Both give the same number, so what one machine wrote another can read. See csrc/checksum.h for the definition. One
thread computes: the callers are worker threads, and a second one would take the cores of the model's.

How numpy does it: read as words of 64 bits, w0 .. wn, a message is the polynomial w0 * X**n + .. + wn with X = x**64,
and multiplication by a constant is linear, so it can be looked up digit by digit. Rows of ``width`` words are added
into one row by Horner's rule, each step multiplying all of its words by X**width; what is left is a message of
``width`` words with the same remainder.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from kvpager import native

_POLYNOMIAL = 0x9A6C9329AC4BC9B5  # reflected: bit 63 - i is the coefficient of x**i
_ONES = 2**64 - 1
_WIDTHS = (4096, 64)  # words of a row: long ones cost numpy less, few words are left for Python
_DIGIT = 16  # bits looked up at once


def checksum(page: np.ndarray) -> int:
    """CRC-64 of ``page`` (uint8, contiguous)."""
    kernels = native.module()
    if kernels is None:
        return _by_numpy(page)
    return int(kernels.checksum(page.ctypes.data, page.nbytes, threads=1))


def copy_checksum(target: np.ndarray, source: np.ndarray) -> int:
    """Copies ``source`` to ``target`` (uint8, contiguous, of equal length, apart) and returns the CRC-64 of it."""
    assert target.nbytes == source.nbytes
    kernels = native.module()
    if kernels is None:
        target[:] = source
        return _by_numpy(target)
    return int(kernels.copy_checksum(target.ctypes.data, source.ctypes.data, source.nbytes, threads=1))


def checksums(pages: Sequence[np.ndarray]) -> list[int]:
    """``checksum`` of pages of equal length. The kernels leave Python for all of them together: a thread that came
    back after each page would wait for the others each time."""
    kernels = native.module()
    if kernels is None or not pages:
        return [_by_numpy(page) for page in pages]
    found: list[int] = kernels.checksums([page.ctypes.data for page in pages], _length(pages))
    return found


def copy_checksums(targets: Sequence[np.ndarray], sources: Sequence[np.ndarray]) -> list[int]:
    """``copy_checksum`` of pages of equal length, in the same way."""
    kernels = native.module()
    if kernels is None or not sources:
        return [copy_checksum(target, source) for target, source in zip(targets, sources, strict=True)]
    size = _length([*targets, *sources])
    to, from_ = [page.ctypes.data for page in targets], [page.ctypes.data for page in sources]
    found: list[int] = kernels.copy_checksums(to, from_, size)
    return found


def row_checksums(rows: np.ndarray) -> np.ndarray:
    """uint64 [n]: ``checksum`` of each row of ``rows`` (uint8 [n, size], rows contiguous)."""
    kernels = native.module()
    count, size = rows.shape
    if kernels is None:
        return np.array([_by_numpy(row) for row in rows], np.uint64)
    first, stride = rows.ctypes.data, rows.strides[0]
    return np.array(kernels.checksums([first + at * stride for at in range(count)], size), np.uint64)


def _length(pages: Sequence[np.ndarray]) -> int:
    size = pages[0].nbytes
    assert all(page.nbytes == size for page in pages)
    return size


def _by_numpy(page: np.ndarray) -> int:
    whole = page.nbytes // 8 * 8
    words = page[:whole].view("<u8")
    remainder = _ONES  # where there is no word that it could be added to
    if len(words):
        for number, width in enumerate(_WIDTHS):
            words = _added_rows(words, width, first=_ONES if number == 0 else 0)
        remainder = 0
        for word in words.tolist():
            remainder = _times_x(remainder ^ word, 64)
    for byte in page[whole:].tolist():
        remainder = _times_x(remainder ^ byte, 8)
    return remainder ^ _ONES


def _added_rows(words: np.ndarray, width: int, first: int) -> np.ndarray:
    """``width`` words with the remainder of all ``words``; ``first`` is added to word 0. The first row may be short:
    leading zeros change nothing."""
    tables = _tables(width)
    lead = (len(words) - 1) % width + 1
    row = np.zeros(width, "<u8")
    row[width - lead :] = words[:lead]
    row[width - lead] ^= np.uint64(first)
    digits = row.view("<u2").reshape(width, 64 // _DIGIT)
    for start in range(lead, len(words), width):
        product = words[start : start + width].copy()
        for place, table in enumerate(tables):
            product ^= table[digits[:, place]]
        row[:] = product
    return row


@cache
def _tables(width: int) -> np.ndarray:
    """The products of every digit, in every place of a word, with X**width: [places, values of a digit]."""
    tables = np.zeros((64 // _DIGIT, 1 << _DIGIT), "<u8")
    product = _x_to_the(64 * width)
    for bit in reversed(range(64)):  # bit 63 is x**0
        place, low = divmod(bit, _DIGIT)
        tables[place, 1 << low] = product
        product = _times_x(product, 1)
    for low in range(_DIGIT):
        tables[:, (1 << low) + 1 : 2 << low] = tables[:, 1 : 1 << low] ^ tables[:, 1 << low, None]
    return tables


def _times_x(number: int, count: int) -> int:
    """``number`` times x**count."""
    for _ in range(count):
        number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
    return number


def _x_to_the(power: int) -> int:
    result, square = 1 << 63, 1 << 62
    while power:
        if power & 1:
            result = _times(result, square)
        square = _times(square, square)
        power >>= 1
    return result


def _times(one: int, other: int) -> int:
    product = 0
    for bit in reversed(range(64)):
        if one >> bit & 1:
            product ^= other
        other = _times_x(other, 1)
    return product
