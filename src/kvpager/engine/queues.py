"""Where each branch of a request stands, and every move from one place to another.

    add -> [waiting] -- admit --> [running] -- finish, fail, cancel --> gone
              ^                    |     ^
              +----- preempt ------+     +-- fork -- [forking] <- add

A branch's sequence is opened as it is admitted or forked, and its pages go back as it is preempted or ends. Whoever
listens to a request is told of endings that no step returns. Decides nothing, and knows no model: who moves when is the
step loop's (engine/step_loop.py) and the clients' affair.
"""

from time import perf_counter

from kvpager.cache.paged_cache import PagedCache
from kvpager.engine.endings import Endings
from kvpager.engine.loading import Loading
from kvpager.engine.opening import Opening
from kvpager.engine.preemption import mode_of
from kvpager.engine.recording import Recording
from kvpager.engine.request import Branch, BranchState, FinishReason, Request
from kvpager.engine.scheduler import Admission, effective_rank
from kvpager.engine.statistics import WorkCounts
from kvpager.types import TierKind


class Queues:
    """``requests``: those that have not finished, by id. ``waiting``, ``running``, ``forking``: their branches by key,
    as they came there. ``counts``: what is added to as they move. ``recording``: is told of each request that ends."""

    def __init__(
        self, cache: PagedCache, opening: Opening, loading: Loading, endings: Endings, counts: WorkCounts
    ) -> None:
        self._cache = cache
        self._opening = opening
        self._loading = loading
        self._endings = endings
        self._counts = counts
        self.requests: dict[int, Request] = {}
        self.waiting: dict[int, Branch] = {}
        self.running: dict[int, Branch] = {}
        self.forking: dict[int, Branch] = {}
        self.recording: Recording | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.forking)

    def add(self, request: Request) -> None:
        """Its first branch waits; the others will be forked from it."""
        for branch in request.branches:
            (self.forking if branch.choice else self.waiting)[branch.key] = branch
        self.requests[request.id] = request

    def admit(self, branch: Branch, admission: Admission) -> None:
        """It runs from now on."""
        del self.waiting[branch.key]
        branch.rank = effective_rank(branch.request.priority, branch.waited)
        branch.move(BranchState.RUNNING)
        if branch.request.started is None:
            branch.request.started = perf_counter()
        self._opening.open(branch, admission, self._loading.leave(branch))
        self.running[branch.key] = branch

    def preempt(self, branch: Branch) -> None:
        """It waits again; what it has computed may be found when it starts anew."""
        seq = branch.running_sequence
        branch.lost = seq.length
        self._counts.preemptions[mode_of(self._cache, seq)] += 1
        self._cache.retention.suspend(seq)
        seq.free()
        branch.leave_sequence()
        branch.keeps, branch.is_slow = None, False
        branch.stuck_since, branch.refusals, branch.vain_rounds = None, 0, 0
        branch.preemptions += 1
        del self.running[branch.key]
        branch.move(BranchState.WAITING)
        self.waiting[branch.key] = branch

    def fork(self, branch: Branch) -> None:
        """Its prompt is computed: the other choices go on from it."""
        for twin in branch.forks_to_come():
            twin.sequence = branch.running_sequence.fork()
            twin.rank = branch.rank
            twin.keeps, twin.is_slow, twin.was_slow = branch.keeps, branch.is_slow, branch.was_slow
            twin.prefix_by_tier = {TierKind.DEVICE: len(branch.request.prompt)}
            twin.move(BranchState.RUNNING)
            del self.forking[twin.key]
            self.running[twin.key] = twin

    def finish(self, branch: Branch, reason: FinishReason, error: str = "") -> str:
        """Ends a branch, gives its pages back and returns the text that was held back."""
        branch.finish_reason = reason
        branch.error = error
        rest = ""
        try:
            if branch.detokenizer is not None and reason is not FinishReason.ERROR:
                rest = branch.detokenizer.flush().text
                branch.text.append(rest)
            branch.stop = self._endings.reason(branch)
        finally:
            self._leave(branch)
        return rest

    def fail(self, branch: Branch, error: str) -> None:
        """Ends a branch, and those that were to be forked from it."""
        for each in (branch, *branch.forks_to_come()):
            self.finish(each, FinishReason.ERROR, error)
            each.tell(each.event(None, ""))

    def cancel(self, request: Request) -> None:
        for branch in request.branches:
            if branch.state is not BranchState.FINISHED:
                branch.tell(branch.event(None, self.finish(branch, FinishReason.CANCELLED)))

    def _leave(self, branch: Branch) -> None:
        if branch.sequence is not None:
            branch.sequence.free(branch.stop)
            branch.retained = branch.sequence.retained
            branch.leave_sequence()
        self._counts.faults += branch.faults
        self._counts.selection += branch.selection
        for group in (self.running, self.waiting, self.forking):
            group.pop(branch.key, None)
        self._loading.leave(branch)
        branch.move(BranchState.FINISHED)
        request = branch.request
        if request.is_finished and self.requests.pop(request.id, None) is not None:
            self._counts.finished_requests += 1
            if self.recording is not None:
                self.recording.ended(request, branch.stop)
