"""Who computes how much in the next step, who starts and who has to stop. Pure decisions over plain numbers.

It holds no state, reads no clock, gives out no blocks and knows no model: the same input gives the same decision.
One pass, in order of importance (rank, then arrival):

    1. running branches that decode get their one token, then those that still compute known tokens (a prompt, or what
       a preemption took) get a chunk, within the token budget; where blocks are short the least important running
       branch that has not been served in this pass is preempted; where there is none, the branch sits this pass out;
    2. waiting branches start, in order, while all that running branches will need soon and the newcomer's known tokens
       fit together. The first that does not fit ends the pass: nobody overtakes it. With nothing running the first
       always starts, since a request that can never fit was refused when it came.

So the most important running branch always advances, and every pass either computes a token or has nothing to do.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvpager.memory.layout import KVLayout

AGING_PASSES = 64  # scheduling passes in the queue that raise a branch by one priority level


@dataclass(frozen=True, slots=True)
class Limits:
    """``chunk``: in deterministic mode, known tokens are computed in pieces that end at multiples of it; else None."""

    layout: KVLayout
    max_running: int
    max_batch_tokens: int
    min_free: int  # blocks that an admission must leave while others run
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A running branch: tokens ``computed`` of those ``known``, of which ``prompt`` came from the client.

    ``copies``: blocks it needs before it may write its begun last page. ``freeable``: asks how many blocks would
    become available if it stopped.
    """

    key: int
    rank: int
    arrival: int
    computed: int
    known: int
    prompt: int
    copies: int
    freeable: Callable[[], int]

    @property
    def importance(self) -> tuple[int, int]:
        """Sorts the most important first."""
        return (-self.rank, self.arrival)


@dataclass(frozen=True, slots=True)
class AdmissionCost:
    """``prefix_tokens`` are found. To hold all known tokens takes ``blocks`` of those available now; ``revived`` of
    them are cached pages that the hit takes at once."""

    prefix_tokens: int
    blocks: int
    revived: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting branch that would start ``width`` running ones. ``cost`` looks its tokens up."""

    key: int
    rank: int
    arrival: int
    known: int
    prompt: int
    width: int
    cost: Callable[[], AdmissionCost]


@dataclass(frozen=True, slots=True)
class Admission:
    key: int
    prefix_tokens: int


@dataclass(frozen=True, slots=True)
class Decision:
    """To be carried out in this order: ``preempted`` stop, ``admitted`` start, then ``work[key]`` tokens each."""

    preempted: tuple[int, ...]
    admitted: tuple[Admission, ...]
    work: dict[int, int]


def effective_rank(priority: int, waited: int) -> int:
    """Priority, raised by one for every AGING_PASSES passes in the queue."""
    return priority + waited // AGING_PASSES


def new_blocks(layout: KVLayout, start: int, stop: int) -> int:
    """Blocks that a step from position ``start`` to ``stop`` maps, over all layer groups."""
    return layout.num_groups * (layout.num_pages(stop) - layout.num_pages(start))


def holding_blocks(layout: KVLayout, tokens: int) -> int:
    """Blocks that a sequence of ``tokens`` holds: windowed groups keep the pages of their window, and the one that
    is being written, and one more where the window's ends lie inside pages."""
    pages = layout.num_pages(tokens)
    total = 0
    for group in layout.groups:
        total += pages if group.window is None else min(pages, layout.num_pages(group.window) + 2)
    return total


def tokens_that_fit(layout: KVLayout, num_blocks: int, limit: int) -> int:
    """The longest sequence, up to ``limit`` tokens, that a pool of ``num_blocks`` can hold."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holding_blocks(layout, middle) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def decide(limits: Limits, running: Iterable[Running], waiting: Iterable[Waiting], available: int) -> Decision:
    """One scheduling pass. ``waiting`` in the order in which they may start; ``available`` blocks could be taken."""
    return _Pass(limits, sorted(running, key=lambda r: r.importance), available).run(waiting)


class _Pass:
    def __init__(self, limits: Limits, running: list[Running], available: int) -> None:
        self._limits = limits
        self._layout = limits.layout
        self._running = running
        self._available = available
        self._tokens = limits.max_batch_tokens
        self._work: dict[int, int] = {}
        self._preempted: list[int] = []
        self._served: set[int] = set()

    def run(self, waiting: Iterable[Waiting]) -> Decision:
        spare = self._available - sum(self._needed_soon(branch) for branch in self._running)
        for is_decode in (True, False):
            for branch in self._running:
                if (branch.known - branch.computed == 1) == is_decode and branch.key not in self._preempted:
                    self._serve(branch)
        admitted = [] if self._preempted else self._admit(waiting, spare)
        return Decision(tuple(self._preempted), tuple(admitted), self._work)

    def _needed_soon(self, branch: Running) -> int:
        """Blocks for its known tokens and one more page, so that admissions don't take what running ones grow into."""
        soon = holding_blocks(self._layout, branch.known + self._layout.page_size)
        return max(0, soon - holding_blocks(self._layout, branch.computed)) + branch.copies

    def _serve(self, branch: Running) -> None:
        self._served.add(branch.key)
        count = self._next_tokens(branch.computed, branch.known, branch.prompt)
        if count == 0:
            return
        while self._blocks(branch, count) > self._available:
            shorter = self._shorten(branch, self._available)
            if shorter:
                count = min(count, shorter)
                break
            victim = self._victim()
            if victim is None:
                return
            self._preempt(victim)
        self._available -= self._blocks(branch, count)
        self._tokens -= count
        self._work[branch.key] = count

    def _next_tokens(self, computed: int, known: int, prompt: int) -> int:
        """Tokens to compute next, within the budget."""
        chunk = self._limits.chunk
        if chunk is None:
            return min(known - computed, self._tokens)
        if computed >= prompt:
            return min(1, self._tokens)
        count = min(prompt, (computed // chunk + 1) * chunk) - computed
        return count if count <= self._tokens else 0

    def _blocks(self, branch: Running, count: int) -> int:
        return new_blocks(self._layout, branch.computed, branch.computed + count) + branch.copies

    def _shorten(self, branch: Running, available: int) -> int:
        """The longest piece that fits into ``available`` blocks; 0 if none does or pieces must not be cut."""
        if self._limits.chunk is not None or available < branch.copies:
            return 0
        pages = (available - branch.copies) // self._layout.num_groups
        return (self._layout.num_pages(branch.computed) + pages) * self._layout.page_size - branch.computed

    def _victim(self) -> Running | None:
        """The least important branch that has not been served in this pass, if possible one that frees something."""
        last = None
        for branch in reversed(self._running):
            if branch.key not in self._served and branch.key not in self._preempted:
                last = last or branch
                if branch.freeable():
                    return branch
        return last

    def _preempt(self, branch: Running) -> None:
        self._available += branch.freeable()
        self._preempted.append(branch.key)

    def _admit(self, waiting: Iterable[Waiting], spare: int) -> list[Admission]:
        admitted: list[Admission] = []
        running = len(self._running)
        for branch in waiting:
            if self._tokens < 1 or (running and running + branch.width > self._limits.max_running):
                break
            cost = branch.cost()
            if running and cost.blocks + self._limits.min_free > min(spare, self._available):
                break
            newcomer = self._newcomer(branch, cost)
            count = self._first_piece(newcomer, self._available - cost.revived)
            if count == 0:
                break
            admitted.append(Admission(branch.key, cost.prefix_tokens))
            self._work[branch.key] = count
            self._tokens -= count
            taken = max(cost.blocks, cost.revived + self._blocks(newcomer, count))
            self._available -= taken
            spare -= taken
            running += branch.width
        return admitted

    def _newcomer(self, branch: Waiting, cost: AdmissionCost) -> Running:
        """What the branch will be once it runs; a hit that ends inside a page has that page copied."""
        computed, layout = cost.prefix_tokens, self._layout
        copies = layout.num_groups if computed % layout.page_size else 0
        return Running(
            branch.key, branch.rank, branch.arrival, computed, branch.known, branch.prompt, copies, lambda: 0
        )

    def _first_piece(self, newcomer: Running, available: int) -> int:
        count = self._next_tokens(newcomer.computed, newcomer.known, newcomer.prompt)
        if count and self._blocks(newcomer, count) > available:
            return min(count, self._shorten(newcomer, available))
        return count
