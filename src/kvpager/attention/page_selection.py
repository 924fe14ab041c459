"""Which pages a decode step attends to in one layer: a list per KV head, from the digests and the settings.

A page's rank is q.centre + LEAN * |q|.radius. With 1 it would be the upper bound of its scores, which adds up over the
channels what no single key has: pages of unlike keys would crowd out the one that matters. So it is less: about
the mean of q.k and, as a radius is some two deviations of 16 keys, one deviation of the keys in each channel. A
page with one key that stands out still counts for more than its mean.

Heads of a group agree by depth: how far a page's rank lies below the log of the sum of exp(rank) over all pages, the
least of the group counts. The ranks themselves, compared across heads, would give nearly all pages to the head with the
largest queries; a sum of shares would average away what one head needs.

What is left out is estimated not by the ranks, which lie above the scores, but by what the same two products say
of their mean and spread: were the keys of a page normal in each channel, the log of the mean of exp(q.k) would be
q.mean + sum(q^2 variance) / 2. The radius stands for the largest of page_size normal numbers without their signs (by
the plotting position of Blom 1958), and sum(q^2 radius^2) for pi / 2 * (|q|.radius)^2 / head_dim, as for
normal q and equal radii.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from torch import Tensor

from kvpager.attention import selective_reference as reference
from kvpager.attention.backend import LayerOptions
from kvpager.attention.digests import Digests
from kvpager.attention.head_pages import dtype_name
from kvpager.config.attend import Selective

LEAN = 0.5  # from the mean of the scores towards their upper bound


@dataclass(frozen=True, slots=True)
class PageBudget:
    """``num_sinks`` first pages and those from ``first_recent`` on are always in. ``wanted``: pages in all, where
    ``mass`` is None."""

    num_pages: int
    num_sinks: int
    first_recent: int
    wanted: int
    mass: float | None

    @classmethod
    def of(cls, settings: Selective, num_tokens: int, page_size: int) -> "PageBudget":
        num_pages = -(-num_tokens // page_size)
        wanted = num_pages
        if settings.budget is not None:
            wanted = min(-(-settings.budget // page_size), num_pages)
        elif settings.share is not None:
            wanted = math.ceil(settings.share * num_pages)
        first_recent = max(0, num_tokens - settings.recent) // page_size
        return cls(num_pages, min(-(-settings.sinks // page_size), num_pages), first_recent, wanted, settings.mass)

    @property
    def takes_all(self) -> bool:
        return self.num_sinks >= self.first_recent or (self.mass is None and self.wanted >= self.num_pages)


@dataclass(frozen=True, slots=True)
class Selected:
    """``pages`` int64: of KV head h those from ``offsets[h]`` to ``offsets[h + 1]``, ascending. ``log_skipped`` float32
    [query_heads]: log of the sum of exp(score) over the keys left out, estimated; -inf where none are."""

    pages: np.ndarray
    offsets: np.ndarray
    log_skipped: np.ndarray

    def extended(self, first: int, num_pages: int) -> "Selected":
        """With the pages from ``first`` to ``num_pages`` for every head; they are none of those selected."""
        if first >= num_pages:
            return self
        lists = [np.append(each, np.arange(first, num_pages)) for each in np.split(self.pages, self.offsets[1:-1])]
        return Selected(*joined(lists), self.log_skipped)


def joined(lists: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """``pages`` and ``offsets`` of Selected."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(each) for each in lists], out=offsets[1:])
    return np.concatenate(lists).astype(np.int64), offsets


def select_pages(
    digests: Digests, q: Tensor, options: LayerOptions, budget: PageBudget, kv_heads: int, page_size: int
) -> Selected:
    """q [query_heads, head_dim], contiguous rows. REQUIRES: all full pages have a digest."""
    query_heads, head_dim = q.shape
    num_digests = min(digests.num_covered, budget.num_pages)
    scale = head_dim**-0.5 if options.scale is None else options.scale
    spread = estimate_spread(page_size, head_dim)
    kernels = digests.kernels()
    if kernels is None:
        centres, radii = digests.values(num_digests)
        ranks, estimates = reference.scores(q.float().numpy(), centres, radii, scale, options.softcap, spread, LEAN)
        lists, log_skipped = reference.select(
            ranks,
            estimates,
            kv_heads,
            budget.num_pages,
            budget.num_sinks,
            budget.first_recent,
            budget.wanted,
            budget.mass,
            page_size,
        )
        return Selected(*joined(lists), log_skipped)
    pages = np.empty((kv_heads, budget.num_pages), np.int32)
    counts, log_skipped = np.empty(kv_heads, np.int64), np.empty(query_heads, np.float32)
    kernels.select_pages(
        digests.table(kernels),
        query_heads,
        q.data_ptr(),
        q.stride(0),
        dtype_name(q),
        scale,
        options.softcap or 0.0,
        spread,
        LEAN,
        page_size,
        num_digests,
        budget.num_sinks,
        budget.first_recent,
        budget.wanted,
        budget.mass or 0.0,
        pages,
        counts,
        log_skipped,
    )
    return Selected(*joined([row[:count] for row, count in zip(pages, counts.tolist(), strict=True)]), log_skipped)


def estimate_spread(page_size: int, head_dim: int) -> float:
    """What (|q|.radius)^2 is multiplied with to be half the variance of q.k over the keys of a page; see above."""
    below = (page_size - 0.375) / (page_size + 0.25)
    farthest = NormalDist().inv_cdf((1 + below) / 2)  # in deviations
    return math.pi / 4 / farthest**2 / head_dim
