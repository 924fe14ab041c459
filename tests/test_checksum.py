"""CRC-64/NVME as the tiers use it: the native kernels and numpy give the same number, whatever the length."""

from collections.abc import Callable

import numpy as np
import pytest

from kvpager import checksum as module
from kvpager import native
from kvpager.checksum import checksum, checksums, copy_checksum, copy_checksums

CHECK_VALUE = 0xAE8B14860A799888  # of "123456789", in the CRC catalogue
ROW = 4096 * 8  # bytes that numpy takes at once

Sum = Callable[[np.ndarray], int]


@pytest.fixture(params=["native", "numpy"])
def sums(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two computes while the test runs."""
    if request.param == "numpy":
        monkeypatch.setattr(native, "module", lambda: None)
    elif native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    return request.param


def random_bytes(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def reference(data: bytes) -> int:
    """One bit at a time."""
    remainder = 2**64 - 1
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x9A6C9329AC4BC9B5 if remainder & 1 else 0)
    return remainder ^ (2**64 - 1)


def test_the_check_value(sums: str) -> None:
    page = np.frombuffer(b"123456789", np.uint8)
    assert checksum(page) == copy_checksum(np.empty_like(page), page) == CHECK_VALUE == reference(b"123456789")


def test_all_short_lengths(sums: str) -> None:
    data = random_bytes(201)
    for size in range(201):
        assert checksum(data[:size]) == reference(data[:size].tobytes()), size


@pytest.mark.parametrize("size", [ROW - 1, ROW, ROW + 1, 2 * ROW, 2 * ROW + 520, 737_280, 3_000_017])
def test_numpy_is_native_for_whole_pages(size: int) -> None:
    if native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    data = random_bytes(size + 3, size)
    for shift in (0, 3):
        page = data[shift : shift + size]
        assert module._by_numpy(page) == checksum(page)


@pytest.mark.parametrize("size", [0, 1, 100, 70_001])
def test_copying_gives_the_same_and_writes_nothing_else(sums: str, size: int) -> None:
    source, target = random_bytes(size), np.full(size + 2, 0xA5, np.uint8)
    assert copy_checksum(target[1 : size + 1], source) == checksum(source)
    assert np.array_equal(target[1 : size + 1], source)
    assert target[0] == target[-1] == 0xA5


def test_pages_that_must_not_be_written_can_be_summed(sums: str) -> None:
    page = np.frombuffer(bytes(1000), np.uint8)
    assert not page.flags.writeable
    assert checksum(page) == copy_checksum(np.empty_like(page), page) == reference(bytes(1000))


def test_a_flipped_bit_shows(sums: str) -> None:
    page = random_bytes(ROW + 100)
    before = checksum(page)
    for at in (0, 7, 8, ROW - 1, ROW, ROW + 99):
        page[at] ^= 1
        assert checksum(page) != before
        page[at] ^= 1
    assert checksum(page) == before


def test_another_length_is_refused(sums: str) -> None:
    with pytest.raises(AssertionError):
        copy_checksum(np.empty(3, np.uint8), np.zeros(4, np.uint8))


@pytest.mark.parametrize(("count", "size"), [(0, 8), (1, 0), (1, 8192), (5, 1000), (3, 70_001)])
def test_several_pages_are_summed_and_copied_like_one(sums: str, count: int, size: int) -> None:
    sources = [random_bytes(size, seed) for seed in range(count)]
    targets = [np.full(size + 2, 0xA5, np.uint8) for _ in range(count)]
    expected = [checksum(page) for page in sources]
    assert checksums(sources) == expected
    assert copy_checksums([target[1 : size + 1] for target in targets], sources) == expected
    for source, target in zip(sources, targets, strict=True):
        assert np.array_equal(target[1 : size + 1], source)
        assert target[0] == target[-1] == 0xA5


def test_pages_of_other_lengths_are_refused() -> None:
    if native.module() is None:
        pytest.skip(f"no native kernels: {native.why_not()}")
    pages = [np.zeros(8, np.uint8), np.zeros(9, np.uint8)]
    with pytest.raises(AssertionError):
        checksums(pages)
    with pytest.raises(AssertionError):
        copy_checksums([np.zeros(8, np.uint8)] * 2, pages)
