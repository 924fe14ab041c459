"""What a cache tells its policy when requests come whose prompts share prefixes, and nothing else of a cache.

A request hits its longest cached prefix, a victim leaves for each page that finds no free block, the new pages enter,
and when the request ends they are let go of, its last page first. Pages are numbered; a prompt is the list of its
pages, and a page has one parent only.
"""

import random
from collections.abc import Sequence

import numpy as np

from kvpager.eviction.policy import NO_USE, EvictionPolicy, Use
from tests.eviction.naive.model import Model

Prompt = Sequence[int]


def random_prompts(generator: random.Random, count: int, longest: int = 6) -> list[Prompt]:
    """Conversations that go on, branch off and begin anew; few of them again and again, most of them once."""
    prompts: list[Prompt] = []
    num_pages = 0
    for _ in range(count):
        head: Prompt = ()
        if prompts and generator.random() < 0.75:
            recent = min(len(prompts), generator.choice([2, 8, 40]))
            head = generator.choice(prompts[-recent:])[: generator.randint(1, longest)]
        fresh = range(num_pages, num_pages + generator.randint(0 if head else 1, longest - len(head)))
        num_pages += len(fresh)
        prompts.append((*head, *fresh))
    return prompts


class TreeCache:
    """``policy`` over ``num_blocks`` blocks of which ``capacity`` are used; ``model`` is told the same and compared."""

    def __init__(
        self, policy: EvictionPolicy, capacity: int, num_blocks: int | None = None, model: Model | None = None
    ) -> None:
        self.policy, self.model = policy, model
        self.free = list(range(num_blocks or capacity))
        self.num_spare = len(self.free) - capacity
        self.block_of: dict[int, int] = {}
        self.page_in: dict[int, int] = {}
        self.parent: dict[int, int | None] = {}
        self.children: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.offered: set[int] = set()  # pages
        self.victims: list[int] = []  # pages, in the order in which they went
        self.hits = 0

    def replay(self, prompts: Sequence[Prompt], use: Use = NO_USE) -> int:
        """Each request ends before the next begins. Returns the pages found."""
        before = self.hits
        for prompt in prompts:
            self.finish(self.start(prompt), use)
        return self.hits - before

    def start(self, prompt: Prompt) -> Prompt:
        """Returns the pages it holds: as many of the first as there is room for."""
        cut = next((at for at, page in enumerate(prompt) if page not in self.block_of), len(prompt))
        found, held = list(prompt[:cut]), list(prompt[:cut])
        self.hits += len(found)
        for page in found:
            self.users[page] += 1
        if self.model:
            self.model.hit_all(found)
        self.offered.difference_update(found)
        self.policy.hit(self.blocks(found))
        for page in prompt[cut:]:
            if len(self.free) <= self.num_spare and not self.evict():
                break
            self.block_of[page] = block = self.free.pop(0)
            self.page_in[block] = page
            self.users[page], self.children[page] = 1, 0
            self.parent[page] = parent = held[-1] if held else None
            if parent is not None:
                self.children[parent] += 1
            held.append(page)
        entered = held[cut:]
        self.policy.enter(self.blocks(entered), np.array(entered, np.uint64))
        if self.model:
            self.model.enter_all(entered)
        return held

    def finish(self, held: Prompt, use: Use = NO_USE) -> None:
        for page in held:
            self.users[page] -= 1
        let_go = [page for page in reversed(held) if self.users[page] == 0]
        self.policy.release(self.blocks(let_go), use)
        if self.model:
            self.model.release(let_go, use)
        self.offer([page for page in let_go if self.children[page] == 0])

    def evict(self) -> bool:
        block = self.policy.victim()
        page = None if block is None else self.page_in[block]
        if self.model:
            expected = self.model.victim(self.offered)
            assert page == expected, f"victim {len(self.victims)} is page {page}; the model has {expected}"
        if block is None or page is None:
            assert not self.offered
            return False
        self.offered.remove(page)
        self.victims.append(page)
        self.policy.leave(np.array([block]))
        if self.model:
            self.model.leave(page)
        del self.block_of[page], self.page_in[block], self.users[page], self.children[page]
        self.free.append(block)
        parent = self.parent.pop(page)
        if parent is not None:
            self.children[parent] -= 1
            if self.children[parent] == 0 and self.users[parent] == 0:
                self.offer([parent])
        return True

    def offer(self, pages: Prompt) -> None:
        self.offered.update(pages)
        self.policy.offer(self.blocks(pages))

    def hold_for_a_while(self, page: int) -> None:
        """As a transfer does."""
        self.policy.withdraw(self.blocks([page]))
        self.policy.offer(self.blocks([page]))

    def move(self, page: int, target: int) -> None:
        """To a free block."""
        source = self.block_of[page]
        self.policy.move(source, target)
        self.free[self.free.index(target)] = source
        self.block_of[page] = target
        self.page_in[target] = self.page_in.pop(source)

    def blocks(self, pages: Prompt) -> np.ndarray:
        return np.array([self.block_of[page] for page in pages], np.int64)

    def check(self) -> None:
        self.policy.check(self.blocks(sorted(self.offered)))
