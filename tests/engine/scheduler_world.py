"""A world without torch around ``decide``: branches grow, share pages, fork and are stopped, over a pool of numbers.

It carries out each decision exactly, counts every block by its owners, and raises as soon as a promise of
engine/scheduler.py is broken. Contents are not simulated beyond what matters for sharing: two prompts of one *family*
agree from the start, as far as both say, and tokens of different answers never do.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from kvpager.engine.block_needs import Limits, holding_blocks
from kvpager.engine.scheduler import AdmissionCost, Decision, Running, Waiting, decide, effective_rank
from kvpager.types import PageName

Key = tuple[int, int]  # family and page number of a published page


@dataclass
class Job:
    """What a client asks for."""

    arrival: int  # pass
    family: int
    prompt: int  # tokens
    answer: int  # tokens
    n: int = 1
    priority: int = 0
    common: int = 1 << 62  # tokens of its prompt that others of its family have too


@dataclass(eq=False)
class Twig:
    """A branch: its pages are blocks; ``computed`` of ``known`` tokens have K and V."""

    key: int
    job: Job
    choice: int
    family: list["Twig"]
    answered: int = 0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    waited: int = 0
    rank: int = 0
    preemptions: int = 0
    admitted_at: int | None = None
    state: str = "waiting"

    @property
    def known(self) -> int:
        return self.job.prompt + self.answered

    @property
    def forks_to_come(self) -> list["Twig"]:
        return [] if self.choice else [twig for twig in self.family if twig.state == "forking"]

    @property
    def importance(self) -> tuple[int, int]:
        return (-self.rank, self.key)


class World:
    def __init__(
        self, limits: Limits, num_blocks: int, jobs: list[Job], choose: Callable[..., Decision] = decide
    ) -> None:
        assert limits.layout.num_groups == 1
        self.limits = limits
        self.page = limits.layout.page_size
        self.num_blocks = num_blocks
        self.jobs = sorted(jobs, key=lambda job: job.arrival)
        self.choose = choose
        self.twigs: list[Twig] = []
        self.passes = 0
        self.refcount: Counter[int] = Counter()
        self.key_of: dict[int, Key] = {}  # published blocks
        self.block_of: dict[Key, int] = {}
        self.preemptions = 0
        self.computed_tokens = 0

    # -- what the scheduler is told -------------------------------------------------------------------------------

    def in_state(self, state: str) -> list[Twig]:
        return [twig for twig in self.twigs if twig.state == state]

    @property
    def available(self) -> int:
        return self.num_blocks - len(+self.refcount)

    def is_shared_tail(self, twig: Twig) -> bool:
        return twig.computed % self.page != 0 and self.refcount[twig.pages[-1]] > 1

    def num_freeable(self, twig: Twig, stopped: Collection[int]) -> int:
        others = Counter(block for each in self.twigs if each.key in stopped for block in each.pages)
        return sum(self.refcount[block] - others[block] == 1 for block in twig.pages)

    def view_running(self) -> list[Running]:
        return [
            Running(
                key=twig.key,
                rank=twig.rank,
                arrival=twig.key,
                computed=twig.computed,
                known=twig.known,
                prompt=twig.job.prompt,
                copies=int(self.is_shared_tail(twig)),
                freeable=partial(self.num_freeable, twig),
                tail=twig.pages[-1] if self.is_shared_tail(twig) else None,
                width=1 + len(twig.forks_to_come),
                next_page=self.next_page(twig, twig.computed, twig.job.prompt),
            )
            for twig in self.in_state("running")
        ]

    @property
    def unit(self) -> int:
        """Tokens that are published and found together."""
        return self.limits.chunk or self.page

    def key(self, twig: Twig, number: int) -> Key:
        is_common = (number + 1) * self.page <= twig.job.common
        return (twig.job.family if is_common else -1 - twig.family[0].key, number)

    def next_page(self, twig: Twig, start: int, limit: int) -> PageName | None:
        """The unit of pages that it computes next; None where that ends behind ``limit``."""
        first = start // self.unit * self.unit
        if first + self.unit > limit:
            return None
        numbers = range(first // self.page, (first + self.unit) // self.page)
        return PageName(tuple(repr(self.key(twig, number)).encode() for number in numbers))

    def hit(self, twig: Twig) -> list[int]:
        """Blocks of the whole pages that are found; at least one token is left to compute."""
        piece = self.unit
        found: list[int] = []
        for number in range((min(twig.known - 1, twig.job.prompt) // piece * piece) // self.page):
            block = self.block_of.get(self.key(twig, number))
            if block is None:
                break
            found.append(block)
        return found[: len(found) * self.page // piece * piece // self.page]

    def cost(self, twig: Twig) -> AdmissionCost:
        found = self.hit(twig)
        live = sum(self.refcount[block] > 0 for block in found)
        blocks = holding_blocks(self.limits.layout, twig.known + 1) - live
        start = len(found) * self.page
        next_page = self.next_page(twig, start, min(twig.known - 1, twig.job.prompt))
        return AdmissionCost(start, blocks, len(found) - live, next_page)

    def view_waiting(self) -> list[Waiting]:
        views = []
        for twig in self.in_state("waiting"):
            rank = effective_rank(twig.job.priority, twig.waited)
            width = 1 + len(twig.forks_to_come)
            cost = partial(self.cost, twig)
            views.append(Waiting(twig.key, rank, twig.key, twig.known, twig.job.prompt, width, cost))
        return sorted(views, key=lambda each: (-each.rank, each.key))

    # -- one pass -------------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return not self.jobs and all(twig.state == "finished" for twig in self.twigs)

    def run_pass(self) -> Decision:
        self.arrive()
        running, waiting, available = self.view_running(), self.view_waiting(), self.available
        decision = self.choose(self.limits, running, iter(waiting), available)
        self.judge(decision, running, waiting)
        by_key = {twig.key: twig for twig in self.twigs}
        if decision.preempted:
            demand = self.demand(decision)
            assert demand > available, f"stopped {decision.preempted}: {demand} of {available} blocks were enough"
        for key in decision.preempted:
            self.preempt(by_key[key])
        for admission in decision.admitted:
            self.admit(by_key[admission.key], admission.prefix_tokens)
        for twig in self.in_state("waiting"):
            twig.waited += 1
        self.compute([(by_key[key], count) for key, count in decision.work.items()])
        self.check()
        self.passes += 1
        return decision

    def arrive(self) -> None:
        while self.jobs and self.jobs[0].arrival <= self.passes:
            job, family = self.jobs.pop(0), []
            for choice in range(job.n):
                family.append(Twig(len(self.twigs), job, choice, family, state="forking" if choice else "waiting"))
                self.twigs.append(family[-1])

    def judge(self, decision: Decision, running: list[Running], waiting: list[Waiting]) -> None:
        """The promises that can be seen in the decision itself."""
        work, limits = decision.work, self.limits
        assert work or not (running or waiting), "a pass without work while there is work"
        assert all(count >= 1 for count in work.values())
        stopped = set(decision.preempted)
        assert len(stopped) == len(decision.preempted)
        assert stopped <= {view.key for view in running}
        assert not stopped & set(work)
        assert not (stopped and decision.admitted), "a pass that stops somebody starts nobody"
        if running:
            order = sorted(running, key=lambda view: view.importance)
            assert order[0].key in work, "the most important running branch did not advance"
            last = {view.key: place for place, view in enumerate(order)}
            served = [last[key] for key in work if key in last]
            assert all(last[key] > min(served) for key in stopped), "stopped for a less important one"
        admitted = [admission.key for admission in decision.admitted]
        self.judge_order(decision, running, waiting)
        assert set(work) <= {view.key for view in running} | set(admitted)
        width = sum(view.width for view in (*running, *waiting) if view.key in admitted or view in running)
        assert width <= limits.max_running or not admitted
        over = 0 if limits.chunk is None else limits.chunk - 1
        assert sum(work.values()) <= limits.max_batch_tokens + over
        if limits.chunk is not None:
            views = {view.key: view for view in running}
            prefix = {admission.key: admission.prefix_tokens for admission in decision.admitted}
            for key, count in work.items():
                twig = self.twigs[key]
                start = views[key].computed if key in views else prefix[key]
                border = min(twig.job.prompt, (start // limits.chunk + 1) * limits.chunk)
                assert count == (border - start if start < twig.job.prompt else 1), "a canonical piece was cut"

    def judge_order(self, decision: Decision, running: list[Running], waiting: list[Waiting]) -> None:
        """Nobody is overtaken but those whose next page a more important one computes; and those do not start."""
        admitted = [admission.key for admission in decision.admitted]
        computing = {}
        for view in sorted(running, key=lambda view: view.importance):
            if view.key in decision.work and view.next_page is not None:
                computing.setdefault(view.next_page, view.importance)
        place = 0
        for view in waiting:
            if place == len(admitted):
                break
            name = view.cost().next_page
            waits = name is not None and computing.get(name, view.importance) < view.importance
            if admitted[place] == view.key:
                assert not waits, "two compute the same page"
                place += 1
                if name is not None:
                    computing.setdefault(name, view.importance)
            else:
                assert waits, "somebody was overtaken"
        assert place == len(admitted), "somebody was overtaken"

    def demand(self, decision: Decision) -> int:
        """Blocks that the work takes if nobody stops."""
        blocks, owners = 0, self.refcount.copy()
        for key, count in decision.work.items():
            twig = self.twigs[key]
            blocks += -(-(twig.computed + count) // self.page) - len(twig.pages)
            if twig.computed % self.page and owners[twig.pages[-1]] > 1:
                owners[twig.pages[-1]] -= 1
                blocks += 1
        return blocks

    def preempt(self, twig: Twig) -> None:
        self.release(twig)
        twig.state, twig.preemptions = "waiting", twig.preemptions + 1
        self.preemptions += 1

    def release(self, twig: Twig) -> None:
        self.refcount.subtract(twig.pages)
        twig.pages, twig.computed = [], 0

    def admit(self, twig: Twig, prefix_tokens: int) -> None:
        twig.pages = self.hit(twig)
        twig.computed = len(twig.pages) * self.page
        assert twig.computed == prefix_tokens
        self.refcount.update(twig.pages)
        twig.rank = effective_rank(twig.job.priority, twig.waited)
        twig.state = "running"
        twig.admitted_at = self.passes if twig.admitted_at is None else twig.admitted_at

    def compute(self, work: list[tuple[Twig, int]]) -> None:
        for twig, _ in work:
            if self.is_shared_tail(twig):
                self.refcount[twig.pages[-1]] -= 1
                twig.pages[-1] = self.take()
        for twig, count in work:
            while len(twig.pages) * self.page < twig.computed + count:
                twig.pages.append(self.take())
            twig.computed += count
            self.computed_tokens += count
            assert twig.computed <= twig.known
        for twig, _ in work:
            self.publish(twig)
            if twig.computed == twig.known:
                self.answer(twig)

    def take(self) -> int:
        """A block: a free one, or one whose content is given up, the last page of its family first."""
        for block in range(self.num_blocks):
            if not self.refcount[block] and block not in self.key_of:
                break
        else:
            idle = [key for key, block in self.block_of.items() if not self.refcount[block]]
            assert idle, "more blocks were promised than exist"
            block = self.block_of.pop(max(idle, key=lambda key: (key[1], key[0])))
            del self.key_of[block]
        self.refcount[block] = 1
        return block

    def publish(self, twig: Twig) -> None:
        until = min(twig.computed, twig.job.prompt)
        if self.limits.chunk is not None:
            until = until // self.limits.chunk * self.limits.chunk
        for number in range(until // self.page):
            block, key = twig.pages[number], self.key(twig, number)
            known = self.block_of.setdefault(key, block)
            if known == block:
                self.key_of[block] = key
            else:
                self.refcount[block] -= 1
                self.refcount[known] += 1
                twig.pages[number] = known

    def answer(self, twig: Twig) -> None:
        for fork in twig.forks_to_come:
            fork.state, fork.rank, fork.admitted_at = "running", twig.rank, self.passes
            fork.pages, fork.computed = twig.pages[:], twig.computed
            self.refcount.update(fork.pages)
            self.sample(fork)
        self.sample(twig)

    def sample(self, twig: Twig) -> None:
        twig.answered += 1
        if twig.answered == twig.job.answer:
            self.release(twig)
            twig.state = "finished"

    def check(self) -> None:
        counted = Counter(block for twig in self.twigs for block in twig.pages)
        assert counted == +self.refcount
        assert len(counted) <= self.num_blocks
        for twig in self.twigs:
            assert len(twig.pages) == -(-twig.computed // self.page)
