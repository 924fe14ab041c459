"""Who computes how much in the next step, who starts and who has to stop. Pure decisions over plain numbers.

It holds no state, reads no clock, gives out no blocks and knows no model: the same input gives the same decision.
One pass:

    1. running branches, in order of importance (rank, then arrival), get their one token where they decode, or a chunk
       of the known tokens they still compute (a prompt, or what a preemption took). The token budget keeps one token
       for every branch that decodes. Where blocks are short, the least important branches behind this one are
       preempted, as few as make room for it; where all of them would not, the branch sits this pass out and nobody
       is stopped in vain;
    2. waiting branches start, in order, while all that running branches will need soon and the newcomer's known tokens
       fit together. The first that does not fit ends the pass: nobody overtakes it. With nothing running, and no
       blocks reserved for branches whose pages are being loaded, the first always starts, since a request that can
       never fit was refused when it came. One whose next page a more important branch computes in this pass waits
       behind that, and keeps its place: those that start meanwhile leave it what it will take.

Branches that can't have all their pages on the device are *slow*: they are computed in the second lane, in a step of
their own (``Decision.slow``), and keep at most ``keeps`` blocks each. A waiting branch becomes slow where what it may
come to need does not fit beside what the slow ones that run may keep; it may then keep a share of what these leave, so
that several of them and ordinary branches always have room side by side. What is left over is never less than one slow
branch needs. While its step is under way a slow branch is busy: it is neither served nor stopped.

So the most important running branch always advances, unless a busy one has the blocks it needs, until that one's step
has ended. Every pass computes a token, or has nothing to do but to wait for such a step. A branch is stopped only for a
more important one that then computes in the same pass.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from kvpager.engine.block_needs import Limits, holding_blocks, max_slow_tokens, new_blocks, slow_share
from kvpager.memory.layout import KVLayout
from kvpager.types import PageName

AGING_PASSES = 64  # scheduling passes in the queue that raise a branch by one priority level


@dataclass(frozen=True, slots=True)
class Running:
    """A running branch: tokens ``computed`` of those ``known``, of which ``prompt`` came from the client.

    ``copies``: blocks it needs before it may write its begun last page. ``tail`` names that page where it is shared
    and not published: the last of its owners to write it needs no copy. ``width``: running branches it counts for,
    itself and those that will be forked from it. ``freeable``: asks how many blocks would become available if it
    stopped too, after the branches with these keys. ``keeps``: blocks it has at most, however long it gets, and
    ``held``: those it has now; None: as many as its tokens need. ``needs``: blocks that it may come to need, wherever
    they lie. ``next_page``: that it computes next and will publish; None where its tokens do not fill that page yet.
    ``is_exact``: it attends to everything; what others had generated is computed again one by one, as it was at first.
    """

    key: int
    rank: int
    arrival: int
    computed: int
    known: int
    prompt: int
    copies: int
    freeable: Callable[[Collection[int]], int]
    tail: int | None = None
    width: int = 1
    keeps: int | None = None
    held: int = 0
    needs: int = 0
    is_slow: bool = False
    is_busy: bool = False
    is_scored: bool = False  # logits are wanted of all that it computes of its prompt
    is_exact: bool = True
    next_page: PageName | None = None

    @property
    def is_decode(self) -> bool:
        """One token is left to compute: the last one known, which gives the next."""
        return self.known - self.computed == 1

    @property
    def importance(self) -> tuple[int, int]:
        """Sorts the most important first."""
        return (-self.rank, self.arrival)


@dataclass(frozen=True, slots=True)
class AdmissionCost:
    """``prefix_tokens`` are found. To hold all known tokens takes ``blocks`` of those available now; ``revived`` of
    them are cached pages that the hit takes at once. ``next_page``: the first that is not found, if it could be."""

    prefix_tokens: int
    blocks: int
    revived: int
    next_page: PageName | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting branch that would start ``width`` running ones. ``cost`` looks its tokens up. ``needs``: blocks that
    each of them may come to need. ``keeps``: as of Running. ``is_alone``: it becomes slow only where nobody else is."""

    key: int
    rank: int
    arrival: int
    known: int
    prompt: int
    width: int
    cost: Callable[[], AdmissionCost]
    needs: int = 0
    keeps: int | None = None
    is_alone: bool = False
    is_scored: bool = False
    is_exact: bool = True

    @property
    def importance(self) -> tuple[int, int]:
        """What it would have as a running branch."""
        return (-self.rank, self.arrival)


@dataclass(frozen=True, slots=True)
class Admission:
    """``prefix_tokens``: that may be reused. None: as many as are found, on whatever tier, since the branch is slow and
    may keep ``keeps`` blocks."""

    key: int
    prefix_tokens: int | None
    keeps: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """To be carried out in this order: ``preempted`` stop, ``admitted`` start, then ``work[key]`` tokens each, and
    ``slow[key]`` in the second lane. Who has just been admitted to that has no work yet: what is found comes first."""

    preempted: tuple[int, ...]
    admitted: tuple[Admission, ...]
    work: dict[int, int]
    slow: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def does_anything(self) -> bool:
        return bool(self.work or self.slow or self.admitted)


def effective_rank(priority: int, waited: int) -> int:
    """Priority, raised by one for every AGING_PASSES passes in the queue."""
    return priority + waited // AGING_PASSES


def needed_soon(layout: KVLayout, branch: Running) -> int:
    """Blocks for its known tokens and one more page, so that admissions don't take what running ones grow into."""
    if branch.keeps is not None:
        return max(0, branch.width * branch.keeps - branch.held) + branch.copies
    soon = holding_blocks(layout, branch.known + layout.page_size)
    return max(0, soon - holding_blocks(layout, branch.computed)) + branch.copies


def num_kept(running: Iterable[Running]) -> int:
    """Blocks that the slow ones of these may keep together."""
    return sum(branch.width * (branch.keeps or 0) for branch in running if branch.is_slow)


def num_below(running: Iterable[Running]) -> int:
    """Blocks that the slow ones of these may come to need below the device."""
    return sum(branch.width * max(0, branch.needs - (branch.keeps or 0)) for branch in running if branch.is_slow)


def decide(
    limits: Limits, running: Iterable[Running], waiting: Iterable[Waiting], available: int, reserved: int = 0
) -> Decision:
    """One scheduling pass. ``waiting`` in the order in which they may start; ``available`` blocks could be taken.

    ``reserved`` of them are meant for branches that can't start yet, because their pages are being loaded: running
    branches may take them, newcomers may not.
    """
    return _Pass(limits, sorted(running, key=lambda r: r.importance), available, reserved).run(waiting)


@dataclass(slots=True)
class _Lane:
    """What is given out of one step. ``decodes``: branches that decode and are neither served nor stopped yet.
    ``scored``: tokens of it whose logits may all be wanted."""

    tokens: int
    decodes: int
    scored: int
    work: dict[int, int] = field(default_factory=dict)


def _slow_tokens(limits: Limits, running: list[Running]) -> int:
    if limits.slow is None:
        return 0
    is_alone = all(branch.is_slow for branch in running)
    return limits.slow.max_tokens if is_alone else limits.slow.max_tokens_beside


class _Pass:
    def __init__(self, limits: Limits, running: list[Running], available: int, reserved: int) -> None:
        self._limits = limits
        self._layout = limits.layout
        self._running = running  # the most important first
        self._available = available
        self._reserved = reserved
        decodes = Counter(branch.is_slow for branch in running if branch.is_decode)
        self._ordinary = _Lane(limits.max_batch_tokens, decodes[False], limits.max_scored)
        self._slow = _Lane(_slow_tokens(limits, running), decodes[True], limits.max_scored)
        self._owners = Counter(branch.tail for branch in running if branch.tail is not None)
        self._preempted: list[int] = []
        self._computing: dict[PageName, tuple[int, int]] = {}  # in this pass, by whom of which importance

    def run(self, waiting: Iterable[Waiting]) -> Decision:
        spare = self._available - self._reserved - sum(needed_soon(self._layout, branch) for branch in self._running)
        for place, branch in enumerate(self._running):
            if branch.key not in self._preempted and not branch.is_busy:
                self._lane(branch).decodes -= branch.is_decode
                self._serve(branch, self._running[place + 1 :])
        admitted = [] if self._preempted else self._admit(waiting, spare)
        return Decision(tuple(self._preempted), tuple(admitted), self._ordinary.work, self._slow.work)

    def _lane(self, branch: Running) -> _Lane:
        return self._slow if branch.is_slow else self._ordinary

    def _serve(self, branch: Running, behind: list[Running]) -> None:
        lane = self._lane(branch)
        budget = lane.tokens
        if not branch.is_decode:
            budget = max(budget - lane.decodes, min(1, budget))
            if branch.is_scored:
                budget = min(budget, lane.scored)
        if branch.is_slow and branch.keeps is not None:
            budget = min(budget, max_slow_tokens(self._layout, branch.keeps))
        wanted = self._next_tokens(branch, budget)
        count = self._fit(branch, wanted, self._available)
        if wanted and not count:
            count = self._make_room(branch, wanted, behind)
        if count:
            self._available -= self._blocks(branch, count)
            lane.tokens -= min(count, budget)
            lane.scored -= count if branch.is_scored else 0
            lane.work[branch.key] = count
            self._leave_tail(branch)
            if branch.next_page is not None and not branch.is_slow:
                self._computing.setdefault(branch.next_page, branch.importance)

    def _next_tokens(self, branch: Running, budget: int) -> int:
        """Tokens to compute next, within the budget but for a piece that must not be cut."""
        chunk, computed, left = self._limits.chunk, branch.computed, branch.known - branch.computed
        if budget < 1:
            return 0
        if chunk is None and branch.is_exact:
            return min(left, budget)
        if computed >= branch.prompt:
            return min(left, 1)
        if chunk is None:
            return min(branch.prompt - computed, budget)
        return min(branch.prompt, (computed // chunk + 1) * chunk) - computed

    def _blocks(self, branch: Running, count: int, stopped: Collection[Running] = ()) -> int:
        """Blocks that ``count`` tokens take, once the branches ``stopped`` have gone."""
        blocks = new_blocks(self._layout, branch.computed, branch.computed + count)
        if branch.keeps is not None:
            blocks = max(0, min(blocks, branch.keeps - branch.held))
        return blocks + self._copies(branch, stopped)

    def _copies(self, branch: Running, stopped: Collection[Running]) -> int:
        if branch.tail is None:
            return branch.copies
        owners = self._owners[branch.tail] - sum(other.tail == branch.tail for other in stopped)
        return branch.copies if owners > 1 else 0

    def _leave_tail(self, branch: Running) -> None:
        """It stopped, or will have a copy of its own: one owner less."""
        if branch.tail is not None:
            self._owners[branch.tail] -= 1

    def _fit(self, branch: Running, count: int, available: int, stopped: Collection[Running] = ()) -> int:
        """As many of ``count`` tokens as ``available`` blocks allow; 0 if none, or if the piece must not be cut."""
        if count == 0 or self._blocks(branch, count, stopped) <= available:
            return count
        copies = self._copies(branch, stopped)
        if self._limits.chunk is not None or available < copies:
            return 0
        pages = (available - copies) // self._layout.num_groups
        return (self._layout.num_pages(branch.computed) + pages) * self._layout.page_size - branch.computed

    def _make_room(self, branch: Running, wanted: int, behind: list[Running]) -> int:
        """Preempts some of the less important branches ``behind`` it; returns the tokens that fit then, or 0."""
        victims: list[Running] = []
        for each in reversed(behind):
            if each.key not in self._preempted and not each.is_busy:
                victims.append(each)
                if self._fit_without(branch, wanted, victims):
                    break
        else:
            return 0  # not even all of them would do
        for each in victims[:-1]:
            fewer = [other for other in victims if other is not each]
            if self._fit_without(branch, wanted, fewer):
                victims = fewer  # it would have stopped for nothing
        count = self._fit_without(branch, wanted, victims)
        for each in victims:
            self._available += each.freeable(self._preempted)
            self._preempted.append(each.key)
            self._lane(each).decodes -= each.is_decode
            self._leave_tail(each)
        return count

    def _fit_without(self, branch: Running, wanted: int, victims: list[Running]) -> int:
        stopped = list(self._preempted)
        available = self._available
        for victim in victims:
            available += victim.freeable(stopped)
            stopped.append(victim.key)
        return self._fit(branch, wanted, available, victims)

    def _admit(self, waiting: Iterable[Waiting], spare: int) -> list[Admission]:
        admitted: list[Admission] = []
        lane = self._ordinary
        running = sum(branch.width for branch in self._running)
        kept, below = num_kept(self._running), num_below(self._running)
        for branch in waiting:
            if lane.tokens < 1 or (running and running + branch.width > self._limits.max_running):
                break
            is_first = not (running or self._reserved)
            room = self._available if is_first else min(spare, self._available) - self._limits.min_free
            slow = self._limits.slow
            if slow is not None and branch.needs > slow.num_blocks - kept:
                keeps = slow_share(slow, self._layout.num_groups, kept, branch.width)
                taken, more = branch.width * keeps, branch.width * (branch.needs - keeps)
                has_no_room = branch.is_alone or below + more > slow.num_below
                if keeps < slow.least or taken > room or (kept and has_no_room):
                    break
                kept, below = kept + taken, below + more
                admitted.append(Admission(branch.key, None, keeps))
            else:
                cost = branch.cost()
                if not is_first and cost.blocks > room:
                    break
                taken = cost.blocks
                if not self._is_computed_by_another(branch, cost):
                    newcomer = self._newcomer(branch, cost)
                    budget = min(lane.tokens, lane.scored) if branch.is_scored else lane.tokens
                    wanted = self._next_tokens(newcomer, budget)
                    count = self._fit(newcomer, wanted, self._available - cost.revived)
                    if count == 0:
                        break
                    admitted.append(Admission(branch.key, cost.prefix_tokens))
                    lane.work[branch.key] = count
                    lane.tokens -= min(count, lane.tokens)
                    lane.scored -= count if branch.is_scored else 0
                    taken = max(taken, cost.revived + self._blocks(newcomer, count))
                    if cost.next_page is not None:
                        self._computing.setdefault(cost.next_page, branch.importance)
                spare -= self._page_after(branch)  # it runs now, or keeps its place: see needed_soon
            self._available -= taken
            spare -= taken
            running += branch.width
        return admitted

    def _is_computed_by_another(self, branch: Waiting, cost: AdmissionCost) -> bool:
        """Whether a more important branch computes its next page: by itself it would come after that one anyway.

        So it waits for no longer than it would be overtaken: waiting raises its rank above the other's.
        """
        if cost.next_page is None:
            return False
        other = self._computing.get(cost.next_page)
        return other is not None and other < branch.importance

    def _page_after(self, branch: Waiting) -> int:
        """Blocks for one more page than a newcomer's cost holds."""
        if branch.keeps is not None:
            return 0
        layout, known = self._layout, branch.known
        return holding_blocks(layout, known + layout.page_size) - holding_blocks(layout, known + 1)

    def _newcomer(self, branch: Waiting, cost: AdmissionCost) -> Running:
        """What the branch will be once it runs; a hit that ends inside a page has that page copied."""
        computed, layout = cost.prefix_tokens, self._layout
        copies = layout.num_groups if computed % layout.page_size else 0
        held = layout.num_groups * layout.num_pages(computed)
        return Running(
            branch.key,
            branch.rank,
            branch.arrival,
            computed,
            branch.known,
            branch.prompt,
            copies,
            lambda _: 0,
            keeps=branch.keeps,
            held=held,
            is_exact=branch.is_exact,
        )
