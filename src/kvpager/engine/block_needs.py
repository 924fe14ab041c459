"""How many blocks tokens take, and what an engine's pool and steps allow. Arithmetic, without any state or branch."""

from dataclasses import dataclass

from kvpager.memory.layout import KVLayout

STANDING_PAGES = 3  # that a slow branch keeps besides those it is writing: the begun one, its first and its latest


@dataclass(frozen=True, slots=True)
class Limits:
    """``whole_run``: blocks that each request takes, whatever it asks for, where allocation is contiguous and knows no
    better; else None. ``chunk``: in deterministic mode, prompts are computed in pieces that end at multiples of it;
    else None. A piece is never cut, so the last one that begins within ``max_batch_tokens`` may end beyond it."""

    layout: KVLayout
    max_running: int
    max_batch_tokens: int
    min_free: int  # blocks that an admission must leave while others run
    chunk: int | None = None
    slow: "SlowLimits | None" = None  # None: whoever does not fit was refused
    whole_run: int | None = None
    max_scored: int = 1 << 30  # tokens of a step of either lane whose logits are all wanted: each row is large


@dataclass(frozen=True, slots=True)
class SlowLimits:
    """``num_blocks``: of the pool; ``num_below``: that the tiers below hold. ``share``: what a slow branch may keep of
    what those before it have left. ``least``: blocks without which none can be computed. ``max_tokens`` of one step of
    the second lane, and ``max_tokens_beside`` where ordinary branches run: the lane can't be interrupted in the middle
    of a matrix product."""

    num_blocks: int
    share: float
    least: int
    max_tokens: int
    max_tokens_beside: int
    num_below: int = 1 << 62


def new_blocks(layout: KVLayout, start: int, stop: int) -> int:
    """Blocks that a step from position ``start`` to ``stop`` maps, over all layer groups."""
    return layout.num_groups * (layout.num_pages(stop) - layout.num_pages(start))


def holding_blocks(layout: KVLayout, tokens: int, piece: int = 1, kept: int | None = None) -> int:
    """Blocks that a sequence of ``tokens`` holds while it computes ``piece`` of them at once: windowed groups keep the
    pages of their window, those being written, and one more where the window's ends lie inside pages. ``kept``: tokens
    of which the other groups keep pages, at both ends of the sequence; None: all."""
    pages, written = layout.num_pages(tokens), layout.num_pages(piece)
    total = 0
    for group in layout.groups:
        if group.window is not None:
            total += min(pages, layout.num_pages(group.window) + 1 + written)
        else:
            total += pages if kept is None else min(pages, layout.num_pages(kept) + 2 + written)
    return total


def tokens_that_fit(layout: KVLayout, num_blocks: int, limit: int, piece: int = 1) -> int:
    """The longest sequence, up to ``limit`` tokens, that a pool of ``num_blocks`` can hold, computed in pieces."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holding_blocks(layout, middle, piece) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def blocks_of_request(limits: Limits, prompt: int, max_tokens: int, longest: int, kept: int | None = None) -> int:
    """Blocks that a request of ``prompt`` tokens may come to need for each choice; its last token has no K and V.
    ``kept``: see holding_blocks."""
    if limits.whole_run is not None:
        return limits.whole_run
    piece = limits.max_batch_tokens if kept is not None else 1
    tokens = min(longest, prompt + max(1, max_tokens) - 1)
    return holding_blocks(limits.layout, tokens, limits.chunk or piece, kept)


def slow_share(slow: SlowLimits, num_groups: int, kept: int, width: int = 1) -> int:
    """Blocks that each of ``width`` new slow branches may keep, where those that run may keep ``kept`` together."""
    left = slow.num_blocks - kept
    most = min(int(slow.share * left), left - slow.least)  # the rest is for ordinary branches
    return max(0, most // width // num_groups * num_groups)


def max_slow_tokens(layout: KVLayout, keeps: int) -> int:
    """Tokens that a branch which may keep ``keeps`` blocks computes at once, at most, beside what has to stay."""
    return max(1, keeps // layout.num_groups - STANDING_PAGES) * layout.page_size
