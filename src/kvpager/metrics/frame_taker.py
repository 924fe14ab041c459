"""Looks at an engine between two steps, as shortly as possible, and numbers the frames that are made of that.

The look is taken on the engine's thread; figures are made of it elsewhere (metrics/frame_figures.py). Knows what a look
needs of the one before; does not know who watches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvpager.metrics.activity import Activity
from kvpager.metrics.alerts import Alert
from kvpager.metrics.block_view import OwnerNumbers, PageCounts, view_pool
from kvpager.metrics.contiguous_view import Held
from kvpager.metrics.frame_figures import Look, Owner, figures_of
from kvpager.metrics.frames import Frame
from kvpager.metrics.rates import Rates
from kvpager.metrics.snapshot import take

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Branch

MAX_SHOWN = 512  # branches with a row of their own, running ones first


class Label(Protocol):
    """How a request is shown: by the id of its response, and the session it belongs to."""

    @property
    def request(self) -> str: ...

    @property
    def session(self) -> str: ...


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A branch, and how it is called where it is shown."""

    branch: "Branch"
    owner: int
    request: str
    session: str


class FrameTaker:
    """``labels`` of the requests by the engine's id, asked on the engine's thread; ``started``: unix seconds.
    ``alerts``: those that fire, asked on any thread."""

    def __init__(
        self,
        model: str,
        started: float,
        labels: Callable[[], Mapping[int, Label]],
        alerts: Callable[[], Sequence[Alert]] = tuple,
    ) -> None:
        self._model, self._started, self._labels, self._alerts = model, started, labels, alerts
        self._numbers = OwnerNumbers()
        self._activity = Activity()
        self._rates = Rates()
        self._seq = 0

    def named(self, engine: "Engine") -> list[Named]:
        """The branches that are shown, running ones first. REQUIRES: the engine's thread."""
        running = engine.branches()
        shown = [*running, *engine.waiting_branches()[: max(0, MAX_SHOWN - len(running))]]
        numbers, labels = self._numbers.of(branch.key for branch in shown), self._labels()
        return [_named(branch, numbers[branch.key], labels.get(branch.request.id)) for branch in shown]

    def look(self, engine: "Engine") -> Look:
        """REQUIRES: the engine's thread, between two steps."""
        named = self.named(engine)
        mapping = [each for each in named if each.branch.sequence is not None]
        sequences = [each.branch.running_sequence for each in mapping]
        pool = view_pool(engine.cache, sequences, [each.owner for each in mapping])
        now = time.perf_counter()
        place_of_owner = {id(each.branch): place for place, each in enumerate(mapping)}
        owners = [_owner(each, place_of_owner.get(id(each.branch)), pool.pages, now) for each in named[:MAX_SHOWN]]
        return Look(
            snapshot=take(engine, now),
            time=time.time(),
            blocks=pool.blocks,
            owners=tuple(owners),
            left_out=len(engine.branches()) + engine.num_waiting - len(owners),
            held=tuple(Held(each.branch.running_sequence.length, _longest(each.branch)) for each in mapping),
            layout=engine.layout,
            context=engine.max_tokens,
        )

    def frame(self, look: Look) -> Frame:
        """REQUIRES: looks come in the order in which they were taken, one at a time; on any thread."""
        self._seq += 1
        figures = {
            "seq": self._seq,
            "time": round(look.time, 3),
            "uptime": round(look.time - self._started, 3),
            "model": self._model,
            **figures_of(look, self._rates.now(look.snapshot), self._activity.since_last(look.snapshot, look.time)),
            "alerts": [alert.as_dict() for alert in self._alerts()],
        }
        return Frame(self._seq, look.time, figures, look.blocks)


def _named(branch: "Branch", owner: int, label: Label | None) -> Named:
    request = (label.request if label else "") or f"request-{branch.request.id}"
    return Named(branch, owner, request, label.session if label else "")


def _owner(named: Named, place: int | None, pages: PageCounts, now: float) -> Owner:
    branch, request = named.branch, named.branch.request
    below = 0 if place is None else pages.below[place]
    return Owner(
        owner=named.owner,
        request=named.request,
        session=named.session,
        choice=branch.choice,
        state=branch.state.value,
        prompt_tokens=len(request.prompt),
        tokens=0 if branch.sequence is None else branch.sequence.length,
        generated=len(branch.output),
        max_tokens=_longest(branch) - len(request.prompt),
        pages=0 if place is None else pages.blocks[place] + below,
        shared_pages=0 if place is None else pages.shared[place],
        pages_below=below,
        prefix_tokens=branch.prefix_tokens,
        preemptions=branch.preemptions,
        is_slow=branch.is_slow,
        attention=request.attention,
        age=round(max(0.0, now - request.came), 3),
    )


def _longest(branch: "Branch") -> int:
    """Tokens of prompt and answer at most."""
    request = branch.request
    return min(len(request.prompt) + request.sampling.max_tokens, request.limit)
