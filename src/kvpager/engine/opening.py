"""A branch starts, for the first time or again: its sequence is opened with what is found of its tokens.

Counts what was found. Knows no queue and decides nothing: whether it is slow, and what it may keep, was decided before.
"""

from collections.abc import Mapping

from kvpager.attention.make_state import make_state
from kvpager.attention.use_state import UseState
from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.config.attend import EXACT, Attend, Exact, parse_attend
from kvpager.engine.request import Branch
from kvpager.engine.scheduler import Admission
from kvpager.engine.scheduler_view import SchedulerView
from kvpager.engine.statistics import StartCounts
from kvpager.types import TierKind

_MOST_USABLE = 1024  # ways to attend that are remembered as possible


class Opening:
    """Of one engine. ``chunk``: as of Limits. ``attend``: of requests that say nothing themselves, in words."""

    def __init__(self, cache: PagedCache, view: SchedulerView, chunk: int | None, attend: str) -> None:
        self._cache = cache
        self._view = view
        self._chunk = chunk
        self._usable: set[Attend] = {EXACT}
        self._default = self.attend_of(attend)
        self.counts = StartCounts()

    def attend_of(self, attend: Attend | str | None) -> Attend:
        """How a request attends. Raises ConfigError where that is not known, or not possible with this cache."""
        if attend is None:
            return self._default
        found = parse_attend(attend) if isinstance(attend, str) else attend
        if isinstance(found, Exact):
            return EXACT
        if found not in self._usable:
            make_state(self._cache.layout, found, 1)
            if len(self._usable) < _MOST_USABLE:  # clients choose the numbers
                self._usable.add(found)
        return found

    def open(self, branch: Branch, admission: Admission, came_up: Mapping[int, TierKind]) -> None:
        """``came_up``: pages that were loaded for it."""
        request = branch.request
        branch.is_slow = admission.prefix_tokens is None
        branch.keeps = admission.keeps if branch.is_slow else self._view.keeps(request)
        if branch.is_slow and not branch.was_slow:
            branch.was_slow = True
            self.counts.oversized_requests += 1
        branch.sequence = seq = self._sequence(branch, admission, came_up)
        if self._cache.runs is not None:
            self._cache.runs.reserve(seq.row, self._view.needs(request))
        if request.attend is not EXACT:
            seq.attention = make_state(self._cache.layout, request.attend, len(request.prompt))
        elif branch.is_slow:
            seq.attention = UseState(self._cache.layout)  # its pages stay on the device by their use
        if request.matched is None:
            request.matched = seq.prefix_tokens
        seq.prompt_tokens = len(request.prompt)  # of what is known, some may be output
        seq.matched_tokens = request.matched  # what is found of what it lost itself doesn't count
        self._count(branch, {tier: tokens for tier, tokens in seq.prefix_by_tier.items() if tokens})
        source = self._view.source
        if source is not None and seq.length < source.num_tokens(request):
            source.write(request, seq, seq.length)

    def _count(self, branch: Branch, found: dict[TierKind, int]) -> None:
        if branch.prefix_by_tier is not None:
            self.counts.resumed(branch.lost, found)
            return
        branch.prefix_by_tier = found
        self.counts.started(len(branch.request.prompt), found)
        if branch.request.attend is not EXACT:
            self.counts.approximated(branch.request.attention)

    def _sequence(self, branch: Branch, admission: Admission, came_up: Mapping[int, TierKind]) -> Sequence:
        keeps, reusable = admission.keeps, len(branch.request.prompt)
        if branch.prefix_limit is not None:
            reusable = min(reusable, branch.prefix_limit)

        def opened(max_prefix: int | None) -> Sequence:
            return self._cache.sequence(
                branch.known_tokens(),
                scope=branch.request.scope,
                max_prefix=max_prefix,
                publish_until=self._publish_until(branch),
                came_up=came_up,
                retain=branch.request.retain,
                resident_limit=None if keeps is None else keeps // self._cache.layout.num_groups,
                non_resident=branch.is_slow,
            )

        if not branch.is_slow:
            return opened(admission.prefix_tokens)
        if self._chunk is None:
            return opened(branch.prefix_limit)
        seq = opened(reusable // self._chunk * self._chunk)
        while (found := seq.prefix_tokens) % self._chunk:  # only whole canonical pieces have a recomputation's bits
            seq.free()
            seq = opened(found // self._chunk * self._chunk)
        return seq

    def _publish_until(self, branch: Branch) -> int | None:
        """Only whole canonical pieces of the prompt have the bits of a recomputation; and what is computed after an
        approximate prompt, or by approximation, is not what others look for."""
        prompt = len(branch.request.prompt)
        if self._chunk is not None:
            return prompt // self._chunk * self._chunk
        return None if branch.request.attend is EXACT else prompt
