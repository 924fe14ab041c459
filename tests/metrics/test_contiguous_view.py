"""The arithmetic, on numbers that can be followed by hand."""

import pytest

from kvpager.metrics.contiguous_view import Held, Pool, compare

# 100 blocks of 4 tokens, 10 bytes a token. Two sequences of 10 and 6 tokens share one full page: 3 + 2 - 1 blocks.
POOL = Pool(blocks=100, block_bytes=40, page_size=4, token_bytes=10, used_blocks=4, empty_slots=4)
RUNNING = [Held(tokens=10, longest=40), Held(tokens=6, longest=24)]


def test_two_sequences_that_share() -> None:
    seen = compare(POOL, RUNNING, context=100)
    assert seen.paged_used_bytes == 160
    assert seen.paged_waste_share == 4 / 16
    assert seen.reserved_bytes == 640
    assert seen.reserved_waste_share == 48 / 64
    assert seen.context_bytes == 2000
    assert seen.context_waste_share == 184 / 200
    assert (seen.fits_paged, seen.fits_contiguous, seen.fits_context) == (50, 12, 4)


def test_nothing_runs() -> None:
    seen = compare(Pool(100, 40, 4, 10, used_blocks=0, empty_slots=0), [], context=100)
    assert (seen.fits_paged, seen.fits_contiguous, seen.fits_context) == (None, None, None)
    assert (seen.paged_waste_share, seen.reserved_waste_share, seen.context_waste_share) == (0, 0, 0)


@pytest.mark.parametrize("tokens", [0, 40])
def test_a_reservation_that_is_empty_or_full(tokens: int) -> None:
    seen = compare(POOL, [Held(tokens, 40)], context=40)
    assert seen.reserved_waste_share == seen.context_waste_share == (1 if tokens == 0 else 0)
