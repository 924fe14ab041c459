"""Passes in which nothing can run: how long that has been so, and who ends for it, so that the others go on.

Transfers from lower tiers are waited for, but not without end. Decides nothing of what runs, and knows no model.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List

from kvpager.engine.loading import Loading
from kvpager.engine.request import Branch
from kvpager.engine.slow_turns import HUNG_SECONDS, MAX_STILL_PASSES, SlowTurns


class Standstill:
    """Of one engine. ``running``: all branches that run, by key. ``fail``: ends a branch, saying why."""

    def __init__(
        self, loading: Loading, turns: SlowTurns, running: Mapping[int, Branch], fail: Callable[[Branch, str], None]
    ) -> None:
        self._loading = loading
        self._turns = turns
        self._running = running
        self._fail = fail
        self._since: float | None = None
        self._still_passes = 0  # one after the other in which nothing ran, and nothing was waited for

    def ended(self) -> None:
        """Something ran, or made room."""
        self._since, self._still_passes = None, 0

    def rest(self, queue: List[Branch], now: float) -> None:
        """Nothing can run: waits a little for a transfer. Who needs the blocks that one holds too long fails then."""
        waits_for_load = self._loading.num_loading > 0
        is_waiting = self._loading.rest()
        self._still_passes += not is_waiting
        if self._still_passes > MAX_STILL_PASSES and any(branch.is_slow for branch in self._running.values()):
            self._turns.give_way()
            self.ended()
        elif not is_waiting or waits_for_load or self._since is None:
            self._since = now
        elif now - self._since > HUNG_SECONDS:
            running = sorted(self._running.values(), key=lambda branch: (-branch.rank, branch.key))
            self._fail((running or queue)[0], "a lower tier does not answer and holds the blocks that it needs")
