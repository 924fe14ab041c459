"""Paged against contiguous, on the sequences that run now: what they use, and what they would reserve in one piece.

*Own maximum*: each gets room for its prompt and its ``max_tokens`` before it starts. *Context limit*: each gets room
for the longest sequence that may be asked for, as one must if nobody says how long the answer may be. Neither can
share, so a prompt that two sequences have in common is reserved twice. A contiguous reservation holds all positions of
all layers, also of layers with a sliding window. Arithmetic over numbers that were counted; knows no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pool:
    """``used_blocks`` of ``blocks`` are mapped by sequences; ``empty_slots`` of those hold no token."""

    blocks: int
    block_bytes: int
    page_size: int
    token_bytes: int
    used_blocks: int
    empty_slots: int


@dataclass(frozen=True, slots=True)
class Held:
    """One running sequence: ``tokens`` whose K and V are written, and the ``longest`` it may become."""

    tokens: int
    longest: int


@dataclass(frozen=True, slots=True)
class ContiguousView:
    """Shares are of the bytes used or reserved that hold no token, 0 to 1. ``fits_...``: sequences such as these in the
    whole pool, by the mean of those that run; None while none does."""

    paged_used_bytes: int
    paged_waste_share: float
    reserved_bytes: int
    reserved_waste_share: float
    context_bytes: int
    context_waste_share: float
    fits_paged: int | None
    fits_contiguous: int | None
    fits_context: int | None


def compare(pool: Pool, running: Sequence[Held], context: int) -> ContiguousView:
    """``context``: the longest sequence that may be asked for, tokens."""
    tokens = sum(each.tokens for each in running)
    reserved = sum(each.longest for each in running)
    at_context = context * len(running)
    places = pool.blocks * pool.block_bytes // pool.token_bytes
    return ContiguousView(
        paged_used_bytes=pool.used_blocks * pool.block_bytes,
        paged_waste_share=_share(pool.empty_slots, pool.used_blocks * pool.page_size),
        reserved_bytes=reserved * pool.token_bytes,
        reserved_waste_share=_share(reserved - tokens, reserved),
        context_bytes=at_context * pool.token_bytes,
        context_waste_share=_share(at_context - tokens, at_context),
        fits_paged=_fitting(pool.blocks, pool.used_blocks, len(running)),
        fits_contiguous=_fitting(places, reserved, len(running)),
        fits_context=_fitting(places, at_context, len(running)),
    )


def _share(part: int, whole: int) -> float:
    return max(0, part) / whole if whole else 0.0


def _fitting(room: int, taken: int, count: int) -> int | None:
    """How many fit into ``room`` where ``count`` take ``taken``."""
    return room * count // taken if taken else None
