"""The invariants that tie an engine's queues to its requests and its cache. Changes nothing, and mends nothing."""

from kvpager.cache.paged_cache import PagedCache
from kvpager.engine.loading import Loading
from kvpager.engine.queues import Queues
from kvpager.engine.request import BranchState
from kvpager.errors import InvariantError


def check_books(cache: PagedCache, loading: Loading, queues: Queues) -> None:
    """Raises InvariantError unless an engine's queues, its loads and its cache agree. REQUIRES: no open step."""
    cache.check()
    loading.check(list(queues.waiting.values()))
    places = (
        (BranchState.RUNNING, queues.running),
        (BranchState.WAITING, queues.waiting),
        (BranchState.FORKING, queues.forking),
    )
    for state, queue in places:
        for branch in queue.values():
            if branch.state is not state or (branch.sequence is not None) != (state is BranchState.RUNNING):
                raise InvariantError(f"branch {branch.key} is {branch.state.value}, but queued as {state.value}")
            if branch.sequence is not None and branch.sequence.tokens != branch.known_tokens():
                raise InvariantError(f"branch {branch.key} and its sequence know different tokens")
            if queues.requests.get(branch.request.id) is not branch.request:
                raise InvariantError(f"branch {branch.key} is queued, but its request is gone")
            if branch.is_slow and (state is not BranchState.RUNNING or branch.keeps is None):
                raise InvariantError(f"branch {branch.key} is slow, but keeps no number of blocks")
    if len(queues.running) != cache.statistics().sequences:
        raise InvariantError("a sequence has no running branch")
    live = sum(each.state is not BranchState.FINISHED for r in queues.requests.values() for each in r.branches)
    if live != sum(len(queue) for _, queue in places) or any(r.is_finished for r in queues.requests.values()):
        raise InvariantError("a branch is in no queue, or a finished request is kept")
