"""What an engine shows of itself: plain numbers, read at one moment, that add up. Counts what the engine tells it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvpager.engine.faults import NO_FAULTS, Faults
from kvpager.engine.load_or_compute import LoadCounts
from kvpager.engine.preemption import PreemptionMode
from kvpager.engine.selection import NO_SELECTION, Selection
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.engine.loading import Loading
    from kvpager.engine.queues import Queues
    from kvpager.engine.request import Branch


@dataclass(frozen=True, slots=True)
class Resumptions:
    """What became of preempted branches when they started again.

    ``by_tier``: how many, by the slowest tier that gave something back (NONE: all was computed again). ``tokens``: of
    what they had lost, those that were found, by tier, and under NONE those that are computed again.
    """

    by_tier: dict[TierKind, int]
    tokens: dict[TierKind, int]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Branches ``running`` and ``waiting`` (forks, and those ``loading`` too) now; everything else since the start.

    ``prompt_tokens`` of the requests that have started; ``prefix_tokens`` of them were found, where ``prefix_by_tier``
    says, and the others computed. ``loads``: what was decided about pages in lower tiers; ``loads_explained``: the last
    decision in words. ``selection``: of selective attention, its bytes those in use now.
    """

    running: int
    waiting: int
    loading: int
    finished_requests: int
    prompt_tokens: int
    prefix_tokens: int
    prefix_by_tier: dict[TierKind, int]
    generated_tokens: int
    preemptions_by_mode: dict[PreemptionMode, int]
    resumptions: Resumptions
    loads: LoadCounts
    loads_explained: str
    steps: int
    model_seconds: float
    bookkeeping_seconds: float
    sampling_seconds: float
    oversized_requests: int = 0
    slow_steps: int = 0
    faults: Faults = NO_FAULTS
    approximate_requests: dict[str, int] = field(default_factory=dict)
    selection: Selection = NO_SELECTION

    @property
    def preemptions(self) -> int:
        return sum(self.preemptions_by_mode.values())


@dataclass(slots=True)
class WorkCounts:
    """What an engine has done since its start."""

    steps: int = 0
    generated_tokens: int = 0
    preemptions: Counter[PreemptionMode] = field(default_factory=Counter)
    finished_requests: int = 0
    model_seconds: float = 0.0
    bookkeeping_seconds: float = 0.0
    sampling_seconds: float = 0.0
    faults: Faults = NO_FAULTS  # of branches that have ended
    selection: Selection = NO_SELECTION


@dataclass(slots=True)
class StartCounts:
    """Tokens that were found when branches started, for the first time or again."""

    prompt_tokens: int = 0
    prefix_tokens: int = 0
    prefix_by_tier: dict[TierKind, int] = field(default_factory=dict)
    oversized_requests: int = 0
    approximate_requests: dict[str, int] = field(default_factory=dict)
    _resumed: dict[TierKind, int] = field(default_factory=dict)
    _resumed_tokens: dict[TierKind, int] = field(default_factory=dict)

    def started(self, prompt_tokens: int, found: Mapping[TierKind, int]) -> None:
        self.prompt_tokens += prompt_tokens
        self.prefix_tokens += sum(found.values())
        _add(self.prefix_by_tier, found)

    def approximated(self, attention: str) -> None:
        self.approximate_requests[attention] = self.approximate_requests.get(attention, 0) + 1

    def resumed(self, lost: int, found: Mapping[TierKind, int]) -> None:
        """``lost``: the tokens that were computed when it was preempted."""
        slowest = max(found, default=TierKind.NONE)
        _add(self._resumed, {slowest: 1})
        _add(self._resumed_tokens, {**found, TierKind.NONE: max(0, lost - sum(found.values()))})

    def resumptions(self) -> Resumptions:
        return Resumptions(dict(self._resumed), dict(self._resumed_tokens))


def _add(counts: dict[TierKind, int], more: Mapping[TierKind, int]) -> None:
    for tier, count in more.items():
        if count:
            counts[tier] = counts.get(tier, 0) + count


def read_statistics(
    queues: "Queues", loading: "Loading", counts: WorkCounts, starts: StartCounts, slow_steps: int
) -> EngineStatistics:
    """Changes nothing. ``slow_steps``: that the second lane has ended."""
    live = (*queues.running.values(), *queues.waiting.values())
    return EngineStatistics(
        running=len(queues.running),
        waiting=len(queues.waiting) + len(queues.forking),
        loading=loading.num_loading,
        finished_requests=counts.finished_requests,
        prompt_tokens=starts.prompt_tokens,
        prefix_tokens=starts.prefix_tokens,
        prefix_by_tier=dict(starts.prefix_by_tier),
        generated_tokens=counts.generated_tokens,
        preemptions_by_mode=dict(counts.preemptions),
        resumptions=starts.resumptions(),
        loads=loading.model.counts(),
        loads_explained=loading.model.explain(),
        steps=counts.steps,
        model_seconds=counts.model_seconds,
        bookkeeping_seconds=counts.bookkeeping_seconds,
        sampling_seconds=counts.sampling_seconds,
        oversized_requests=starts.oversized_requests,
        slow_steps=slow_steps,
        faults=sum((each.faults for each in live), counts.faults),
        approximate_requests=dict(starts.approximate_requests),
        selection=_selection(live, counts.selection),
    )


def _selection(live: "tuple[Branch, ...]", ended: Selection) -> Selection:
    """Steps of all branches, those that have ``ended`` too; bytes of the sequences that there are."""
    now = [Selection.of(each.sequence.attention) for each in live if each.sequence is not None]
    held = sum(now, NO_SELECTION)
    steps = sum((each.earlier_selection for each in live), ended) + held
    return Selection(steps.steps, steps.skipped, held.digest_bytes, held.kept_row_bytes)
