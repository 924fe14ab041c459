"""The invariants that tie an engine's queues to its requests and its cache. Changes nothing, and mends nothing."""

from typing import TYPE_CHECKING

from kvpager.engine.request import BranchState
from kvpager.errors import InvariantError

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine


def check_engine(engine: "Engine") -> None:
    """Raises InvariantError unless the books of the engine, its loads and its cache agree. REQUIRES: no open step."""
    engine.cache.check()
    engine.loading.check(list(engine._waiting.values()))
    queues = (
        (BranchState.RUNNING, engine._running),
        (BranchState.WAITING, engine._waiting),
        (BranchState.FORKING, engine._forking),
    )
    for state, queue in queues:
        for branch in queue.values():
            if branch.state is not state or (branch.sequence is not None) != (state is BranchState.RUNNING):
                raise InvariantError(f"branch {branch.key} is {branch.state.value}, but queued as {state.value}")
            if branch.sequence is not None and branch.sequence.tokens != branch.known_tokens():
                raise InvariantError(f"branch {branch.key} and its sequence know different tokens")
            if engine._requests.get(branch.request.id) is not branch.request:
                raise InvariantError(f"branch {branch.key} is queued, but its request is gone")
            if branch.is_slow and (state is not BranchState.RUNNING or branch.keeps is None):
                raise InvariantError(f"branch {branch.key} is slow, but keeps no number of blocks")
    if len(engine._running) != engine.cache.statistics().sequences:
        raise InvariantError("a sequence has no running branch")
    live = sum(each.state is not BranchState.FINISHED for r in engine._requests.values() for each in r.branches)
    if live != sum(len(queue) for _, queue in queues) or any(r.is_finished for r in engine._requests.values()):
        raise InvariantError("a branch is in no queue, or a finished request is kept")
