"""Looks at an engine between two steps, as shortly as possible, and numbers the frames that are made of that.

The look is taken on the engine's thread; figures are made of it elsewhere (metrics/frame_figures.py). Knows what a look
needs of the one before; does not know who watches.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from kvpager.memory.layout import KVLayout
from kvpager.metrics.activity import Activity
from kvpager.metrics.alerts import Alert
from kvpager.metrics.block_view import BlockView, OwnerNumbers, PageCounts, view_pool
from kvpager.metrics.contiguous_view import ContiguousView, Held, Pool, compare
from kvpager.metrics.frame_figures import figures_of
from kvpager.metrics.frames import Frame
from kvpager.metrics.rates import Rates
from kvpager.metrics.snapshot import Snapshot, take

if TYPE_CHECKING:
    from kvpager.engine.engine import Engine
    from kvpager.engine.request import Branch

MAX_SHOWN = 512  # branches with a row of their own, those with pages first


class Label(Protocol):
    """How a request is shown: by the id of its response, and the session it belongs to."""

    @property
    def request(self) -> str: ...

    @property
    def session(self) -> str: ...


class Named(NamedTuple):
    """A branch, and how it is called where it is shown."""

    branch: "Branch"
    owner: int
    request: str
    session: str


class Moment(NamedTuple):
    """What changes of a branch, as it was between two steps. A tuple, since there may be hundreds in a look."""

    state: str
    tokens: int
    generated: int
    prefix_tokens: int
    preemptions: int
    is_slow: bool


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What was read between two steps, at ``time`` (unix seconds). ``named`` and ``moments``: of the branches that are
    shown, those that have pages before all others; ``left_out``: how many are not. ``pages``: of those with pages.
    ``context``: the longest sequence that may be asked for, tokens."""

    snapshot: Snapshot
    time: float
    blocks: BlockView
    pages: PageCounts
    named: list[Named]
    moments: list[Moment]
    left_out: int
    layout: KVLayout
    context: int


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
        """The branches that are shown: those with pages, then those that wait. REQUIRES: the engine's thread."""
        running = engine.branches()
        waiting = engine.waiting_branches()[: max(0, MAX_SHOWN - len(running))]
        shown = sorted([*running, *waiting], key=_has_no_pages)
        numbers, labels = self._numbers.of([branch.key for branch in shown]), self._labels()
        return [_named(branch, numbers[branch.key], labels.get(branch.request.id)) for branch in shown]

    def look(self, engine: "Engine") -> Look:
        """REQUIRES: the engine's thread, between two steps."""
        named = self.named(engine)
        sequences = [each.branch.sequence for each in named if each.branch.sequence is not None]
        pool = view_pool(engine.cache, sequences, [each.owner for each in named[: len(sequences)]])
        rows = np.array([seq.row for seq in sequences], np.int64)
        lengths = [*engine.cache.rows.committed[rows].tolist(), *[0] * (len(named) - len(rows))]
        now = time.perf_counter()
        return Look(
            snapshot=take(engine, now),
            time=time.time(),
            blocks=pool.blocks,
            pages=pool.pages,
            named=named,
            moments=[_moment(each.branch, length) for each, length in zip(named, lengths, strict=True)],
            left_out=len(engine.branches()) + engine.num_waiting - min(len(named), MAX_SHOWN),
            layout=engine.layout,
            context=engine.max_tokens,
        )

    def frame(self, look: Look) -> Frame:
        """REQUIRES: looks come in the order in which they were taken, one at a time; on any thread."""
        self._seq += 1
        rate, deeds = self._rates.now(look.snapshot), self._activity.since_last(look.snapshot, look.time)
        figures = {
            "seq": self._seq,
            "time": round(look.time, 3),
            "uptime": round(look.time - self._started, 3),
            "model": self._model,
            **figures_of(look.snapshot, look.layout, rate, deeds),
            "owners": [_owner(look, place) for place in range(min(len(look.named), MAX_SHOWN))],
            "owners_left_out": look.left_out,
            "contiguous": asdict(_compared(look)),
            "alerts": [alert.as_dict() for alert in self._alerts()],
        }
        return Frame(self._seq, look.time, figures, look.blocks)


def _has_no_pages(branch: "Branch") -> bool:
    return branch.sequence is None


def _named(branch: "Branch", owner: int, label: Label | None) -> Named:
    request = (label.request if label else "") or f"request-{branch.request.id}"
    return Named(branch, owner, request, label.session if label else "")


def _moment(branch: "Branch", length: int) -> Moment:
    return Moment(
        branch.state.value, length, len(branch.output), branch.prefix_tokens, branch.preemptions, branch.is_slow
    )


def _owner(look: Look, place: int) -> dict[str, Any]:
    """A branch as it stands. Pages are those of all layer groups; ``age``: seconds since its request came."""
    named, moment = look.named[place], look.moments[place]
    request = named.branch.request
    has_pages = place < len(look.pages.blocks)
    below = look.pages.below[place] if has_pages else 0
    return {
        "owner": named.owner,
        "request": named.request,
        "session": named.session,
        "choice": named.branch.choice,
        "state": moment.state,
        "prompt_tokens": len(request.prompt),
        "tokens": moment.tokens,
        "generated": moment.generated,
        "max_tokens": _longest(named.branch) - len(request.prompt),
        "pages": look.pages.blocks[place] + below if has_pages else 0,
        "shared_pages": look.pages.shared[place] if has_pages else 0,
        "pages_below": below,
        "prefix_tokens": moment.prefix_tokens,
        "preemptions": moment.preemptions,
        "is_slow": moment.is_slow,
        "attention": request.attention,
        "age": round(max(0.0, look.snapshot.at - request.came), 3),
    }


def _compared(look: Look) -> ContiguousView:
    cache = look.snapshot.cache
    pool = Pool(
        blocks=cache.blocks.total,
        block_bytes=cache.block_bytes,
        page_size=look.layout.page_size,
        token_bytes=look.layout.bytes_per_token,
        used_blocks=cache.blocks.used,
        empty_slots=cache.waste_tokens,
    )
    held = [
        Held(moment.tokens, _longest(named.branch))
        for named, moment, _ in zip(look.named, look.moments, look.pages.blocks, strict=False)
    ]
    return compare(pool, held, look.context)


def _longest(branch: "Branch") -> int:
    """Tokens of prompt and answer at most."""
    request = branch.request
    return min(len(request.prompt) + request.sampling.max_tokens, request.limit)
