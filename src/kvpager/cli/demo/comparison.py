"""What the run took, against what contiguous reservation would have taken: arithmetic over numbers that were counted.

Two reservations, since both exist. *Context limit*: a request gets room for the longest sequence that may be asked
for, before it starts, because nobody knows how long the answer will be. *Own maximum*: a request gets room for its
prompt and its ``max_tokens``, which is less, and the shortest are let in first, so that no order could do better.
Neither can share. Knows no engine, no model and no terminal.
"""

from dataclasses import dataclass

from kvpager.cli.demo.frame import Frame
from kvpager.config import format_size


@dataclass(frozen=True, slots=True)
class Pool:
    """``token_bytes``: K and V of one token over all layers."""

    blocks: int
    block_bytes: int
    page_size: int
    token_bytes: int

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """One sequence that the run asked for: its prompt and the longest answer it may give, tokens."""

    prompt: int
    answer: int
    is_fork: bool

    @property
    def longest(self) -> int:
        return self.prompt + self.answer


@dataclass(frozen=True, slots=True)
class Comparison:
    """``peak``: the frame with most sequences running. ``asked``: every sequence of the run; ``context``: the longest
    sequence that may be asked for, tokens; ``last``: the frame after the last step."""

    pool: Pool
    peak: Frame
    last: Frame
    asked: tuple[Asked, ...]
    context: int

    # -- paged --------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Memory that the sequences of the peak used."""
        return self.peak.used_blocks * self.pool.block_bytes

    @property
    def used_slots(self) -> int:
        return self.peak.used_blocks * self.pool.page_size

    @property
    def waste(self) -> float:
        """Share of the slots of used blocks that no token filled, at the peak."""
        return self.peak.waste_tokens / self.used_slots if self.used_slots else 0.0

    @property
    def shared_pages(self) -> int:
        """Pages at the peak that needed no block of their own."""
        return self.peak.mapped_pages - self.peak.used_blocks

    @property
    def forked_tokens(self) -> int:
        """Prompt tokens of further choices, which the first choice of their request had computed."""
        return sum(each.prompt for each in self.asked if each.is_fork)

    # -- contiguous ---------------------------------------------------------------------------------------------

    @property
    def held_at_context(self) -> int:
        """Sequences the same bytes hold if each reserves the context limit."""
        return self.pool.nbytes // (self.context * self.pool.token_bytes)

    @property
    def held_at_own_maximum(self) -> int:
        """Sequences the same bytes hold if each reserves its own longest, the shortest first."""
        return len(self._shortest_that_fit())

    @property
    def bytes_at_context(self) -> int:
        """Memory that the sequences of the peak would reserve at the context limit."""
        return self.peak.running * self.context * self.pool.token_bytes

    def _shortest_that_fit(self) -> list[int]:
        room, chosen = self.pool.nbytes // self.pool.token_bytes, []
        for longest in sorted(each.longest for each in self.asked):
            if longest > room:
                break
            room -= longest
            chosen.append(longest)
        return chosen

    # -- as an object, as text ----------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, object]:
        return {
            "pool_blocks": self.pool.blocks,
            "pool_bytes": self.pool.nbytes,
            "page_size": self.pool.page_size,
            "bytes_per_token": self.pool.token_bytes,
            "peak_seconds": self.peak.seconds,
            "peak_sequences": self.peak.running,
            "peak_requests": self.peak.running_requests,
            "peak_live_tokens": self.peak.live_tokens,
            "peak_used_blocks": self.peak.used_blocks,
            "peak_used_bytes": self.used_bytes,
            "peak_pages_without_own_block": self.shared_pages,
            "peak_waste_tokens": self.peak.waste_tokens,
            "peak_waste": self.waste,
            "context_limit": self.context,
            "contiguous_sequences_at_context_limit": self.held_at_context,
            "contiguous_sequences_at_own_maximum": self.held_at_own_maximum,
            "contiguous_bytes_for_peak_at_context_limit": self.bytes_at_context,
            "tokens_looked_up": self.last.prompt_tokens,
            "tokens_found": self.last.hit_tokens,
            "prompt_tokens_forked": self.forked_tokens,
        }

    def lines(self) -> list[str]:
        return [*self._paged_lines(), "", *self._contiguous_lines(), "", *self._sharing_lines()]

    def _paged_lines(self) -> list[str]:
        peak, pool = self.peak, self.pool
        return [
            f"Paged: most ran together after {peak.seconds:.1f} s",
            f"  concurrent   {peak.running} sequences (of {peak.running_requests} requests), "
            f"{peak.live_tokens:,} tokens of context",
            f"  memory       {peak.used_blocks} blocks x {pool.block_bytes:,} bytes = {format_size(self.used_bytes)} "
            f"of a pool of {pool.blocks} = {format_size(pool.nbytes)}",
            f"  sharing      {peak.mapped_pages} pages in {peak.used_blocks} blocks: {self.shared_pages} pages needed "
            "no block of their own",
            f"  waste        {peak.waste_tokens} of {self.used_slots:,} slots in use were empty "
            f"({self.waste:.1%}): only last pages are part full",
        ]

    def _contiguous_lines(self) -> list[str]:
        pool, chosen = self.pool, self._shortest_that_fit()
        reserved = self.context * pool.token_bytes
        return [
            "Contiguous: the same pool, if every sequence reserved its room in one piece before it starts",
            f"  for the context limit of {self.context:,} tokens, as one must if the length is not known beforehand:",
            f"               {pool.nbytes:,} // ({self.context:,} x {pool.token_bytes:,}) = {self.held_at_context} "
            f"sequences; the {self.peak.running} above would take {self.peak.running} x {format_size(reserved)} = "
            f"{format_size(self.bytes_at_context)}",
            "  for its own prompt + max_tokens, the shortest first, so that no order could hold more:",
            f"               {len(chosen)} sequences reserve {sum(chosen):,} of "
            f"{pool.nbytes // pool.token_bytes:,} token places",
        ]

    def _sharing_lines(self) -> list[str]:
        found, asked = self.last.hit_tokens, self.last.prompt_tokens
        share = found / asked if asked else 0.0
        return [
            f"Computed once: {found:,} of {asked:,} tokens looked up on admission were found ({share:.0%}), and "
            f"{self.forked_tokens:,} prompt tokens more came with forks",
        ]


def is_fuller(frame: Frame, other: Frame) -> bool:
    """Whether more sequences run in ``frame``, or as many with more context."""
    return (frame.running, frame.live_tokens) > (other.running, other.live_tokens)
