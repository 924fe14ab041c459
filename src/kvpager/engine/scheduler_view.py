"""What the scheduler is shown of the engine: its branches and its cache as the plain numbers that ``decide`` takes.

    engine (branches, in its queues) -> SchedulerView -> Running, Waiting, AdmissionCost -> decide

Nothing flows back: it asks the cache and changes neither that nor a branch; the decision goes to the engine. Numbers
hold for one pass: the questions it hands out (``freeable``, ``cost``) are asked before the decision is carried out.
It knows no model and no queue, and nothing of loads but whose turn has come, which it is told.
"""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvpager.cache.page_names import PageNames
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.prefix_match import PrefixMatch
from kvpager.cache.sequence import Sequence
from kvpager.config.attend import EXACT, most_kept
from kvpager.engine.block_needs import Limits, blocks_of_request, holding_blocks, new_blocks
from kvpager.engine.loading import Stage
from kvpager.engine.scheduler import AdmissionCost, Running, Waiting, effective_rank, needed_soon

if TYPE_CHECKING:
    from kvpager.engine.prompt_source import PromptSource
    from kvpager.engine.request import Branch, Request


def queue_order(waiting: "Iterable[Branch]") -> "list[Branch]":
    """Waiting branches in the order in which they may start."""
    return sorted(waiting, key=lambda b: (-effective_rank(b.request.priority, b.waited), b.key))


def num_held(seq: Sequence) -> int:
    """Blocks that a sequence has on the device."""
    return sum(len(table.mapped_blocks()) for table in seq.tables)


class SchedulerView:
    """Views of branches over one cache. ``source``: of prompts that are not computed here, if there is one."""

    def __init__(self, cache: PagedCache, limits: Limits) -> None:
        self.source: PromptSource | None = None
        self._cache = cache
        self._limits = limits
        self._layout = limits.layout
        self._names = PageNames(cache, limits.chunk or limits.layout.page_size)

    def running(self, branches: "Mapping[int, Branch]", busy: "Collection[Branch]" = ()) -> list[Running]:
        """``branches``: all that run, by key; what stopping one frees depends on the others. ``busy``: those of them in
        whose step the second lane is."""
        key_to_sequence = {key: branch.running_sequence for key, branch in branches.items()}
        copies = self._cache.num_copies(list(key_to_sequence.values())).tolist()
        return [
            Running(
                key=branch.key,
                rank=branch.rank,
                arrival=branch.key,
                computed=seq.length,
                known=branch.num_known,
                prompt=len(branch.request.prompt),
                copies=copied,
                freeable=partial(self._num_freeable, key_to_sequence, seq),
                tail=self._shared_tail(seq) if copied else None,
                width=1 + len(branch.forks_to_come()),
                keeps=branch.keeps,
                held=0 if branch.keeps is None else num_held(seq),
                needs=self._taken(branch) if branch.is_slow else 0,
                is_slow=branch.is_slow,
                is_busy=branch.is_slow and branch in busy,
                is_scored=branch.is_scored,
                is_exact=branch.request.attend is EXACT,
                next_page=None if branch.num_known - seq.length == 1 else self._names.next_of_running(seq),
            )
            for branch, seq, copied in zip(branches.values(), key_to_sequence.values(), copies, strict=True)
        ]

    def waiting(self, queue: "Iterable[Branch]", turn: "Callable[[Branch], Stage]", kept: int = 0) -> Iterator[Waiting]:
        """Those of the queue that may start now. Lazy: a look-up is made only for those the scheduler asks about.

        ``queue``: in ``queue_order``. ``turn``: asks how far the load of the next one is. ``kept``: blocks that running
        slow branches may keep.
        """
        runs = None if self._cache.runs is None else self._cache.runs.plan()
        for branch in queue:
            if runs is not None and not runs.take(self.needs(branch.request)):
                return  # blocks may be free, but not side by side
            stage = Stage.READY if self.will_be_slow(branch, kept) else turn(branch)
            if stage is Stage.NEW:
                return  # there is no room to load it, and nobody overtakes it
            if stage is not Stage.READY:
                continue  # nobody waits for its pages but itself
            yield Waiting(
                key=branch.key,
                rank=effective_rank(branch.request.priority, branch.waited),
                arrival=branch.key,
                known=branch.num_known,
                prompt=len(branch.request.prompt),
                width=1 + len(branch.forks_to_come()),
                cost=partial(self.admission_cost, branch),
                needs=self.needs(branch.request),
                keeps=self.keeps(branch.request),
                is_alone=branch.is_alone,
                is_scored=branch.is_scored,
                is_exact=branch.request.attend is EXACT,
            )

    def keeps(self, request: "Request") -> int | None:
        """Blocks that an ordinary branch has at most, because it gives pages back or has a run of blocks; None: as many
        as its tokens need."""
        is_bounded = most_kept(request.attend) is not None or self._cache.runs is not None
        return self.needs(request) if is_bounded else None

    def needs(self, request: "Request") -> int:
        """Blocks that a choice of the request may come to need."""
        return blocks_of_request(
            self._limits, len(request.prompt), request.sampling.max_tokens, request.limit, most_kept(request.attend)
        )

    def _taken(self, branch: "Branch") -> int:
        """Blocks that count as needed by a running slow branch: all there are, where nobody may be beside it."""
        slow = self._limits.slow
        return slow.num_blocks + slow.num_below if slow and branch.is_alone else self.needs(branch.request)

    def will_be_slow(self, branch: "Branch", kept: int) -> bool:
        """Whether a waiting branch would be computed in the second lane, where others may keep so many blocks. Pages of
        it that are found are used where they lie: nothing is brought up."""
        slow = self._limits.slow
        return slow is not None and self.needs(branch.request) > slow.num_blocks - kept

    def num_spare(self, running: Iterable[Running]) -> int:
        """Blocks that are available beyond what running branches need soon."""
        soon = sum(needed_soon(self._layout, branch) for branch in running)
        return self._cache.num_available - self._limits.min_free - soon

    def has_room(self, work: "Iterable[tuple[Branch, int]]") -> bool:
        """Whether so many tokens more of each of these branches can be given their blocks now."""
        needed = 0
        for branch, count in work:
            seq = branch.running_sequence
            needed += int(self._cache.num_copies([seq]).sum())
            needed += new_blocks(self._layout, seq.length, seq.length + count)
        return needed <= self._cache.num_available

    def admission_cost(self, branch: "Branch") -> AdmissionCost:
        """What a waiting branch would take if it started now."""
        tokens, scope = branch.known_tokens(), branch.request.scope
        match = self._cache.lookup(tokens, scope, branch.prefix_limit)
        chunk = self._limits.chunk
        if chunk is not None:  # only whole canonical pieces of the prompt have the bits of a recomputation
            canonical = min(match.num_tokens, len(branch.request.prompt)) // chunk * chunk
            while match.num_tokens != canonical:  # a shorter hit may lack pages of a window, and end before it
                match = self._cache.lookup(tokens, scope, canonical)
                canonical = match.num_tokens // chunk * chunk
        cost = self._cost_of(branch, match, tokens)
        if match.inside is not None and cost.blocks > self._cache.num_available:
            # The page that is copied would be one too many at the moment of the copy.
            match = self._cache.lookup(tokens, scope, len(match.nodes) * self._layout.page_size)
            cost = self._cost_of(branch, match, tokens)
        if self.source is not None:
            cost = replace(cost, prefix_tokens=max(cost.prefix_tokens, self.source.num_tokens(branch.request)))
        return cost

    def _cost_of(self, branch: "Branch", match: PrefixMatch, tokens: "array[int]") -> AdmissionCost:
        blocks = holding_blocks(self._layout, branch.num_known + 1)
        if (keeps := self.keeps(branch.request)) is not None:
            blocks = min(blocks, keeps) if self._cache.runs is None else keeps
        blocks -= self._cache.num_live_blocks(match)
        if match.inside is not None:
            blocks += self._layout.num_groups
        return AdmissionCost(
            match.num_tokens,
            max(0, blocks),
            self._cache.num_revived_blocks(match),
            self._names.next_of_match(match, tokens, branch.request.scope, self._most_reusable(branch)),
        )

    def _most_reusable(self, branch: "Branch") -> int:
        """Tokens that may be found instead of being computed; in deterministic mode only some of the prompt."""
        most = branch.num_known - 1
        if branch.prefix_limit is not None:
            most = min(most, branch.prefix_limit)
        return most if self._limits.chunk is None else min(most, len(branch.request.prompt))

    def _shared_tail(self, seq: Sequence) -> int | None:
        """The block of the begun last page, which needs no copy any more once the other forks have left it."""
        block = int(self._cache.rows.tail[0, seq.row])
        return None if self._cache.pool.indexed[block] else block

    def _num_freeable(self, sequences: Mapping[int, Sequence], seq: Sequence, stopped: Collection[int]) -> int:
        """Blocks that become available if ``seq`` is freed after the branches ``stopped``, with which it may share."""
        if not stopped:
            return self._cache.num_freeable(seq)
        freeable = 0
        for group, table in enumerate(seq.tables):
            blocks = table.mapped_blocks()
            owners = self._cache.pool.refcount[blocks] + self._cache.pool.pins[blocks]  # a transfer may hold some
            for key in stopped:
                other = sequences[key].tables[group]
                owners = owners - np.isin(blocks, other.mapped_blocks())
            freeable += int((owners == 1).sum())
        return freeable
