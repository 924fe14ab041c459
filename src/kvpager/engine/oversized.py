"""Requests that do not fit into the pool: whether they can run here at all, how long they may get, and why no longer.

They keep a share of the pool on the device (engine/scheduler.py) and the rest of their pages in the tiers below, where
each step reads them (cache/paging.py). Decides once, when an engine is opened; runs nothing.
"""

from dataclasses import dataclass

from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.paging import Paging
from kvpager.config import Options
from kvpager.engine.block_needs import STANDING_PAGES, SlowLimits, slow_share, tokens_that_fit
from kvpager.types import TierKind

NO_LIMIT = 1 << 30  # tokens, or pages


@dataclass(frozen=True, slots=True)
class Oversized:
    """``slow``: None where such requests are refused. ``max_tokens``: of the longest request, whether it fits or not.
    ``explained``: in words, for refusals."""

    slow: SlowLimits | None
    max_tokens: int
    explained: str

    @classmethod
    def of(cls, cache: PagedCache, options: Options, chunk: int | None, fits: int, context: int) -> "Oversized":
        """``fits``: tokens of the longest sequence in the pool; ``context``: that the model allows."""
        if options.demand_paging == "off":
            return cls(None, fits, "demand_paging is off")
        if why_not := cache.paging.why_not():
            return cls(None, fits, why_not)
        layout, num_blocks = cache.layout, cache.pool.num_blocks
        tokens, slots = options.max_batch_tokens, _num_slots(cache.paging)
        slow = SlowLimits(
            num_blocks=num_blocks,
            share=options.resident_share,
            least=layout.num_groups * (layout.num_pages(chunk or 1) + STANDING_PAGES),
            max_tokens=tokens,
            max_tokens_beside=min(tokens, chunk or tokens),
            num_below=slots,
        )
        keeps = slow_share(slow, layout.num_groups, kept=0)
        longest = tokens_that_fit(layout, keeps + slots, context, chunk or 1)
        why_not = _too_little(slow, keeps)
        if why_not or longest <= fits:
            return cls(None, fits, why_not or f"the tiers below hold {slots} blocks")
        return cls(slow, longest, f"of which a request may keep {keeps}, and the tiers below hold {slots}")


def _num_slots(paging: Paging) -> int:
    """Blocks that the tiers can hold for running sequences; a remote store says of no limit."""
    assert paging.copies is not None
    usages = [tier.usage() for tier in paging.copies.tiers]
    return sum(NO_LIMIT if usage.kind is TierKind.REMOTE else usage.blocks for usage in usages)


def _too_little(slow: SlowLimits, keeps: int) -> str:
    if keeps >= slow.least:
        return ""
    return (
        f"a request that does not fit needs {slow.least} blocks of the pool, but may keep {keeps} "
        f"(resident_share {slow.share}): raise the capacity, or that"
    )
