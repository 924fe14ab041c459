"""Whose turn it is in the second lane, and what becomes of slow branches that can't go on.

    wanted by the scheduler -> can it begin? -> begin          (engine/slow_steps.py computes it)
                                  |   no: it waits, for transfers or for others that end
                                  v   too long, or with nothing to wait for
                              give way: the least important is preempted, and lets go of its pages below;
                              who is alone fails, with the numbers
    pages lost -> recompute: preempted, and after repeated losses failed

So each slow branch ends within a bound, whatever the tiers do. Branches are preempted and failed by the engine's hands;
this knows neither queues nor models.
"""

from collections.abc import Callable, Mapping

from kvpager.cache.paged_cache import PagedCache
from kvpager.engine.request import Branch
from kvpager.engine.scheduler_view import SchedulerView
from kvpager.engine.slow_steps import SlowSteps
from kvpager.errors import OutOfBlocks, PagesLost

MAX_STILL_PASSES = 2  # one after the other in which a branch can't go on, and there is nothing to wait for
_MAX_VAIN_ROUNDS = 8  # of transfers, one after the other, after which no fewer of its pages are left to go
HUNG_SECONDS = 60.0  # without progress, while transfers do not end
_MAX_LOSSES = 3  # of a request's pages below the device, without a token more than before


class SlowTurns:
    """``running``: all branches that run, by key. ``chunk``: as of Limits. ``clock``: seconds."""

    def __init__(
        self,
        cache: PagedCache,
        steps: SlowSteps,
        view: SchedulerView,
        chunk: int | None,
        running: Mapping[int, Branch],
        preempt: Callable[[Branch], None],
        fail: Callable[[Branch, str], None],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._steps = steps
        self._view = view
        self._chunk = chunk
        self._running = running
        self._preempt = preempt
        self._fail = fail
        self._clock = clock
        self.num_ended = 0

    def begin(self, wanted: list[tuple[Branch, int]]) -> bool:
        """Opens the next step, if none is under way, with those that need not wait. Whether one had to give way because
        others, or itself, could not go on."""
        paging = self._cache.paging
        if not wanted or self._steps.branches:
            return False
        paging.collect()
        is_settled = self._cache.lower is None or not self._cache.lower.migration.num_open
        ready = [item for item in wanted if self._can_step(*item, is_settled)]
        ready.sort(key=lambda item: item[0].served_at)
        unready = [item for item in wanted if not any(item[0] is each for each, _ in ready)]
        refused = [branch for branch, count in unready if is_settled and self._is_vain(branch, count)]
        waiting = [branch for branch, _ in unready if branch not in refused]
        size = len(ready) if self._chunk is None else 1  # each alone, and in turns
        while ready:
            work = ready[:size]
            try:
                self._steps.begin(work)
            except OutOfBlocks:
                size = max(1, len(work) // 2)  # perhaps each fits, but not all of them together
                if len(work) == 1:
                    refused.append(ready.pop(0)[0])
            except PagesLost as lost:
                if self.recompute(lost):
                    return False
                raise
            else:
                for branch, _ in work:
                    branch.served_at = self.num_ended
                break
        for branch, _ in ready:
            branch.stuck_since, branch.refusals, branch.vain_rounds = None, 0, 0
        return self._is_stuck(waiting, refused) and self.give_way()

    def _can_step(self, branch: Branch, count: int, is_settled: bool) -> bool:
        """Without a wait. The pages that should go first do, unless writing them was no use: a tier that is nearly full
        drops one for the other, and then those go that it has."""
        paging, seq = self._cache.paging, branch.running_sequence
        if is_settled and branch.vain_rounds and paging.can_step_without_more(seq, count):
            return True
        return paging.can_step(seq, count)

    def _is_vain(self, branch: Branch, count: int) -> bool:
        """Whether its pages were written again and again, and no more of them are below than before. Asked when all
        transfers have ended."""
        stranded = self._cache.paging.num_stranded(branch.running_sequence, count)
        if not stranded or not branch.vain_rounds or stranded < branch.stranded:  # or it waits for blocks
            branch.vain_rounds = 1
        else:
            branch.vain_rounds += 1
        branch.stranded = stranded
        return branch.vain_rounds > _MAX_VAIN_ROUNDS

    def _is_stuck(self, waiting: list[Branch], refused: list[Branch]) -> bool:
        """Who can't begin a step waits for transfers, or for others that go on and end; whether for too long. Those
        ``refused`` have no transfer to wait for."""
        now, is_still = self._clock(), not self._steps.branches
        for branch in waiting + refused:
            branch.stuck_since = now if branch.stuck_since is None else branch.stuck_since
            branch.refusals = branch.refusals + 1 if is_still and branch in refused else 0
        stuck = [(branch.refusals, branch.stuck_since or now) for branch in waiting + refused]
        return any(refusals > MAX_STILL_PASSES or now - since > HUNG_SECONDS for refusals, since in stuck)

    def give_way(self) -> bool:
        """Slow branches are stuck: the least important one makes room below for the others, and waits until it can be
        alone there. Who is alone and stuck fails. True. REQUIRES: one that is in no step."""
        slow = [branch for branch in self._running.values() if branch.is_slow and branch not in self._steps.branches]
        slow.sort(key=lambda branch: (-branch.rank, branch.key))
        last = slow[-1]
        if len(slow) > 1 or self._steps.branches:
            last.is_alone = True
            self._preempt(last)
        else:
            self._fail(last, self._why_stuck(last))
        for branch in slow:
            branch.stuck_since, branch.refusals, branch.vain_rounds = None, 0, 0
        return True

    def _why_stuck(self, branch: Branch) -> str:
        paging = self._cache.paging
        below, needs = paging.num_non_resident(branch.running_sequence), self._view.needs(branch.request)
        tiers = ", ".join(
            f"{tier.name} has {usage.free} of {usage.blocks} blocks free, {usage.used} in use"
            for tier in (paging.copies.tiers if paging.copies else ())
            for usage in [tier.usage()]
        )
        what = "the tiers below take none of its pages, and they do not fit on the device"
        if not branch.refusals:
            what = f"a lower tier does not answer: its pages were not moved in {HUNG_SECONDS:.0f} s"
        pinned = self._cache.retention.num_pinned
        if pinned:
            tiers += f"; retentions pin {pinned} pages"
        return f"{what}: it may need {needs} blocks, keeps {branch.keeps} on the device and has {below} below ({tiers})"

    def recompute(self, lost: PagesLost) -> bool:
        """Whose pages are lost starts again, with what can still be found of them; not without end. Whether they were
        anybody's."""
        sequences = self._cache.paging.lose(lost)
        for branch in [branch for branch in self._running.values() if branch.sequence in sequences]:
            length = branch.running_sequence.length
            branch.losses = branch.losses + 1 if length <= branch.furthest else 1
            branch.furthest = max(branch.furthest, length)
            if branch.losses < _MAX_LOSSES:
                self._preempt(branch)
            else:
                self._fail(branch, f"its pages below the device were lost {branch.losses} times: {lost.cause}")
        return bool(sequences)
