"""A cache under random retentions, quotas and time, beside the simplest model of who must still be there.

The model knows pages as (salt, all tokens up to the page's end) and retentions as sets of them. After every operation:

    pins        what is pinned and was there is there, unless the only sequence left needed the room
    ttl         what has run out is nowhere, unless it is used, moved or pinned
    quotas      a tenant beyond its quota has no page that may go
    priority    no page was dropped for want of room while one of lower priority could go
    answers     what is answered covers what was asked, or says why not
"""

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field

from kvpager import KVLayout, LayerSpec, OutOfBlocks, Scope, assemble, open_cache
from kvpager.cache.retention_terms import Retained, Retention, Verdict
from kvpager.cache.sequence import Sequence
from kvpager.eviction.make import make_policy
from kvpager.eviction.partitioned import Partitioned
from kvpager.prefix.hashing import block_key, page_key
from kvpager.tiers.host import HostStore
from kvpager.tiers.migration import WriteBack
from kvpager.types import ContentKey
from tests.simulation.mover import SimulatedMover, VirtualClock

PAGE = 4
Page = tuple[str, tuple[int, ...]]
LAYOUTS = {
    "full": KVLayout(1, 1, 4, dtype="float32", page_size=PAGE),
    "window": KVLayout(1, 1, 4, dtype="float32", page_size=PAGE, window=6),
    "mixed": KVLayout.mixed([LayerSpec(1, 4), LayerSpec(1, 4, window=6)], dtype="float32", page_size=PAGE),
}
OPERATIONS = {
    "serve": 30, "go_on": 12, "free": 14, "fork": 3, "truncate": 2, "retain": 8, "release": 5, "wait": 14, "quota": 1,
    "promote": 4, "resize": 0.3, "clear_prefix": 0.1,
}  # fmt: skip


@dataclass
class Held:
    """A retention of the model. ``ends``: when it is ordinary again; ``dies``: when its content goes; None: never."""

    wish: Retention
    answer: Retained
    pages: set[Page] = field(default_factory=set)
    pinned: set[Page] = field(default_factory=set)
    sequence: Sequence | None = None
    ends: float | None = None
    dies: float | None = None

    def start(self, now: float) -> None:
        self.sequence = None
        self.ends = None if self.wish.seconds is None else now + self.wish.seconds
        self.dies = None if self.wish.ttl is None else now + self.wish.ttl


class RetentionWorld:
    def __init__(self, seed: int, policy: str, layout: str, *, is_tiered: bool, check_every: int = 1) -> None:
        self.random = random.Random(seed)
        self.clock = VirtualClock()
        self.layout = LAYOUTS[layout]
        self.groups = range(self.layout.num_groups)
        self.has_full_group = any(group.window is None for group in self.layout.groups)
        self.check_every = check_every
        self.cache = open_cache(
            self.layout, num_blocks=24 * self.layout.num_groups, eviction=policy, clock=self.clock,
            match_inside_pages=is_tiered,  # else the model would have to know which page was found in part
            debug=self.random.random() < 0.5, pinned_share=self.random.choice([0.3, 0.5, 0.7]),
        )  # fmt: skip
        self.mover = SimulatedMover(self.clock, self.random, lambda lane: self.random.choice([0.0, 0.1, 0.6]))
        self.host: HostStore | None = None
        if is_tiered:
            when = self.random.choice([WriteBack.THROUGH, WriteBack.BACK])
            is_exclusive = when is WriteBack.BACK and self.random.random() < 0.5
            below = make_policy(policy, 30, self.clock)
            self.host = HostStore(self.layout.block_stride, 30, below, exclusive=is_exclusive)
            size = 8 * self.layout.block_stride
            assemble.put_below(self.cache, [self.host], self.mover, self.clock, when, size, None)
        self.held: dict[int, Held] = {}
        self.dying: set[tuple[Page, int]] = set()  # in a layer group: run out, and not seen to be gone yet
        self.ranks: dict[Page, int] = {}  # of the last use
        self.quotas: dict[str, int] = {}
        self.keys: dict[Page, ContentKey] = {}
        self.touched: set[Page] = set()  # by the operation
        self.happened: Counter[str] = Counter()
        self.number = 0

    @property
    def num_calls(self) -> int:
        """Of the cache by the operations so far: each made one and those counted in ``happened``."""
        return self.number + self.happened["step"] + self.happened["tick"]

    # -- the run ------------------------------------------------------------------------------------------------

    def run(self, operations: int) -> None:
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        self.quota()
        before = self.look()
        for self.number in range(operations):
            name = self.random.choices(names, weights)[0]
            yielded = self.cache._reclaimer.pins_yielded
            pinned, ranked = self.pinned_pages(), self.evictable_pages()
            self.touched, dropped = set(), self.num_dropped()
            getattr(self, name)()
            self.pass_time()
            after = self.look()
            self.check(name, before, after, pinned, ranked, yielded, dropped)
            before = after
            if self.number % self.check_every == 0:
                self.cache.check()

    # -- operations ---------------------------------------------------------------------------------------------

    def scope(self) -> Scope:
        return Scope(salt=self.random.choice(["", "a", "b"]))

    def prompt(self) -> list[int]:
        """One of few chains that part at some places."""
        head, parts = self.random.randrange(2), self.random.choice([1, 2, 5])
        length = self.random.randint(1, 34)
        at = self.random.choice([4, 8, 10, 16])
        return [head] * min(at, length) + [parts] * max(0, length - at)

    def wish(self) -> Retention:
        start = self.random.choice([0, 0, 0, 3, 8, 12])
        stop = self.random.choice([None, None, start + 1, start + 9, start + 30])
        chosen = self.random.choice(["pin", "priority", "ttl", "ttl", "all"])
        return Retention(
            start,
            stop,
            pin=chosen in ("pin", "all"),
            priority=self.random.choice([0, 20, 50, 80, 100]) if chosen in ("priority", "all") else None,
            seconds=self.random.choice([None, 0.5, 3.0]),
            ttl=self.random.choice([0.0, 0.4, 2.0]) if chosen in ("ttl", "all") else None,
        )

    def serve(self) -> None:
        wishes = [self.wish() for _ in range(self.random.choice([0, 0, 1, 2]))]
        seq = self.cache.sequence(self.prompt(), scope=self.scope(), retain=wishes)
        self.note(seq, wishes)
        self.compute(seq)
        if not seq.is_freed and self.random.random() < 0.6:
            self.let_go(seq)

    def note(self, seq: Sequence, wishes: list[Retention]) -> None:
        self.sweep()
        assert seq.tokens is not None
        assert len(seq.retained) == len(wishes)
        for wish, answer in zip(wishes, seq.retained, strict=True):
            self.happened[f"request {answer.verdict.value}"] += 1
            if answer.verdict is Verdict.REFUSED:
                assert answer.reason
                assert wish.pin or "may name" in answer.reason
                continue
            assert answer.id is not None
            held = self.held[answer.id] = Held(wish, answer, sequence=seq)
            self.cover(held, seq.scope.salt, list(seq.tokens))

    def cover(self, held: Held, salt: str, tokens: list[int]) -> None:
        """The pages that a retention covers of these tokens."""
        known = len(tokens) // PAGE
        stop = known if held.wish.stop is None else min(known, -(-held.wish.stop // PAGE))
        pages = [(salt, tuple(tokens[: (page + 1) * PAGE])) for page in range(stop)]
        held.pages.update(pages[held.wish.start // PAGE :])
        if held.wish.priority is not None:
            self.ranks.update({page: self.rank(page) for page in pages[held.wish.start // PAGE :]})
        if held.wish.ttl is not None:
            self.dying = {each for each in self.dying if each[0] not in held.pages}
        if held.wish.pin:
            held.pinned.update(pages[: held.answer.stop // PAGE])

    def compute(self, seq: Sequence) -> None:
        assert seq.tokens is not None
        tokens = tuple(seq.tokens)
        for salt, known in self.look():  # found inside counts as well
            at = len(known) - PAGE
            if salt == seq.scope.salt and known[: at + 1] == tokens[: at + 1]:
                self.touched.add((salt, known))
        while not seq.is_freed and seq.length < len(seq.tokens):
            count = min(len(seq.tokens) - seq.length, self.random.choice([1, 3, 8, 40]))
            try:
                with self.cache.step({seq: count}):
                    self.pass_time(self.random.choice([0.0, 0.0, 0.3]))
            except OutOfBlocks:
                self.happened["out of blocks"] += 1
                self.let_go(self.random.choice(list(self.cache.sequences.values())))
                continue
            self.happened["step"] += 1
            self.grow(seq)

    def grow(self, seq: Sequence) -> None:
        answers = {answer.id: answer for answer in seq.retained}
        for held in self.held.values():
            if held.sequence is seq:
                held.answer = answers[held.answer.id]
                assert seq.tokens is not None
                published = int(self.cache.rows.published[seq.row])  # none any more once the index was cleared
                self.cover(held, seq.scope.salt, list(seq.tokens[: PAGE * published]))

    def give_back(self, seq: Sequence, length: int) -> None:
        """What it has behind ``length`` counts as used with the priority that it has now, where nobody else uses it."""
        others = [each for each in self.cache.sequences.values() if each is not seq]
        mapped = {block for other in others for table in other.tables for block in table.mapped_blocks().tolist()}
        kept = -(-length // PAGE)
        own = {block for table in seq.tables for block in table.snapshot()[kept : len(table)].tolist()}
        for page, blocks in self.look().items():
            if not own.isdisjoint(blocks) and mapped.isdisjoint(blocks):
                ranks = [held.wish.priority for held in self.held.values() if page in held.pages]
                self.ranks[page] = max((rank for rank in ranks if rank is not None), default=50)

    def let_go(self, seq: Sequence) -> None:
        self.give_back(seq, 0)
        seq.free()
        for id, held in list(self.held.items()):
            if held.sequence is seq:
                held.start(self.clock.now)
                if not held.wish.pin and held.wish.seconds is None and held.wish.ttl is None:
                    del self.held[id]  # its priority stays with the pages

    def any(self) -> Sequence | None:
        live = list(self.cache.sequences.values())
        return self.random.choice(live) if live else None

    def go_on(self) -> None:
        seq = self.any()
        if seq is not None:
            seq.append([self.random.randrange(2) for _ in range(self.random.randint(1, 9))])
            self.compute(seq)

    def free(self) -> None:
        seq = self.any()
        if seq is not None:
            self.let_go(seq)

    def fork(self) -> None:
        seq = self.any()
        if seq is not None and len(self.cache.sequences) < 6:
            twin = seq.fork()
            self.note(twin, list(seq.wishes))

    def truncate(self) -> None:
        seq = self.any()
        if seq is not None and self.layout.groups[-1].window is None:
            length = self.random.randint(0, seq.length)
            self.give_back(seq, length)
            seq.truncate(length)
            self.grow(seq)

    def retain(self) -> None:
        wish, scope, tokens = self.wish(), self.scope(), self.prompt()
        answer = self.cache.retention.retain(
            tokens, wish.start, wish.stop, scope=scope, pin=wish.pin, priority=wish.priority, seconds=wish.seconds,
            ttl=wish.ttl,
        )  # fmt: skip
        self.sweep()
        self.happened[answer.verdict.value] += 1
        assert bool(answer.reason) == (answer.verdict is not Verdict.ACCEPTED)
        if answer.id is None:
            return
        held = self.held[answer.id] = Held(wish, answer)
        held.start(self.clock.now)
        self.cover(held, scope.salt, tokens)

    def release(self) -> None:
        if not self.held or self.random.random() < 0.2:
            assert not self.cache.retention.release(10**9)
            return
        id = self.random.choice(list(self.held))
        assert self.cache.retention.release(id) == (id in self.held)
        self.drop(id, 50)

    def drop(self, id: int, otherwise: int) -> None:
        held = self.held.pop(id)
        if self.is_ranked(held):
            self.ranks.update({page: self.rank(page, otherwise) for page in held.pages})

    def sweep(self) -> None:
        """Retentions without an end may be over when others were refused room, if their pages were nowhere."""
        for id in [id for id in self.held if self.cache.retention.get(id) is None]:
            wish = self.held.pop(id).wish
            assert (wish.pin, wish.seconds, wish.ttl) == (False, None, None), "a retention is lost"
            self.happened["swept"] += 1

    def wait(self) -> None:
        self.pass_time(self.random.choice([0.05, 0.2, 1.0, 4.0]))

    def quota(self) -> None:
        tenant = self.random.choice(["a", "b"])
        blocks = self.random.choice([3, 8, 20, 10**6]) * self.layout.num_groups
        self.quotas[tenant] = blocks
        size = blocks * self.layout.block_bytes
        assert self.cache.retention.set_quota(tenant, size, weight=self.random.choice([0.5, 1.0, 3.0])).id is None

    def promote(self) -> None:
        lower = self.cache.lower
        if lower is not None:
            tokens, scope = self.cache.sequence([1], scope=self.scope()), self.scope()
            tokens.free()
            ids = self.cache.sequence(self.prompt(), scope=scope, came_up={})
            known = ids.tokens
            ids.free()
            assert known is not None
            match = lower.find(known, scope, len(known) - 1)
            if match is not None and lower.promote(match) is not None:
                self.happened["promoted"] += 1

    def resize(self) -> None:
        try:
            self.cache.resize(self.random.randint(16, 30) * self.layout.num_groups)
        except (OutOfBlocks, ValueError):
            self.happened["not resized"] += 1

    def clear_prefix(self) -> None:
        self.cache.clear_prefix()

    # -- time ---------------------------------------------------------------------------------------------------

    def pass_time(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        now = self.clock.now
        self.cache.tick()
        self.happened["tick"] += 1
        for id, held in list(self.held.items()):
            if held.dies is not None and held.dies <= now:
                self.happened["ran out"] += 1
                self.drop(id, 50)
                alive = {page for other in self.held.values() if other.wish.ttl is not None for page in other.pages}
                self.dying.update((page, group) for page in held.pages - alive for group in self.groups)
            elif held.ends is not None and held.ends <= now:
                self.happened["seconds over"] += 1
                if held.wish.ttl is None:
                    self.drop(id, 50)
                else:
                    held.ends = None
                    held.pinned = set()
                    ranked = self.is_ranked(held)
                    held.wish = Retention(held.wish.start, held.wish.stop, ttl=held.wish.ttl)
                    if ranked:
                        self.ranks.update({page: self.rank(page) for page in held.pages})
        if self.dying:
            self.check_dying(f"operation {self.number}", self.look())

    # -- the model ----------------------------------------------------------------------------------------------

    @staticmethod
    def is_ranked(held: Held) -> bool:
        return held.wish.priority is not None

    def rank(self, page: Page, otherwise: int = 50) -> int:
        ranks = [held.wish.priority for held in self.held.values() if page in held.pages]
        return max((rank for rank in ranks if rank is not None), default=otherwise)

    def key(self, page: Page) -> ContentKey:
        key = self.keys.get(page)
        if key is None:
            salt, tokens = page
            parent = self.cache._root_key(Scope(salt=salt))
            if len(tokens) > PAGE:
                parent = self.key((salt, tokens[:-PAGE]))
            raw = b"".join(token.to_bytes(4, "little") for token in tokens[-PAGE:])
            key = self.keys[page] = page_key(parent, raw, b"")
        return key

    def look(self) -> dict[Page, list[int]]:
        """The blocks of each page that is findable on the device."""
        index, found = self.cache.index, dict[Page, list[int]]()
        salts = {self.cache._root_key(Scope(salt=salt)): salt for salt in ("", "a", "b")}
        for block in index.all_blocks().tolist():
            labels, node = [], index.node_of_block(block)
            while (label := index.label(node)) is not None:
                labels.append(label)
                node = index.parent(node)
            tokens = tuple(array("i", b"".join(reversed(labels))))
            found.setdefault((salts[index.key(node)], tokens), []).append(block)
        return found

    def pinned_pages(self) -> set[Page]:
        return set().union(*(held.pinned for held in self.held.values()))

    def evictable_pages(self) -> dict[Page, int]:
        """Rank by page, of those whose block may go."""
        may_go = self.cache.evictable.may_go
        return {page: self.ranks.get(page, 50) for page, blocks in self.look().items() if all(map(may_go, blocks))}

    # -- what must hold -----------------------------------------------------------------------------------------

    def check(
        self,
        name: str,
        before: dict[Page, list[int]],
        after: dict[Page, list[int]],
        pinned: set[Page],
        ranked: dict[Page, int],
        yielded: int,
        dropped: int,
    ) -> None:
        where = f"operation {self.number}, {name}"
        if self.cache._reclaimer.pins_yielded > yielded:
            self.happened["yielded"] += 1
        elif name != "clear_prefix":
            still = pinned & self.pinned_pages()
            gone = {page for page in still if len(after.get(page, ())) < len(before.get(page, ()))}
            assert not gone, f"{where}: pinned pages went: {gone}"
        self.check_dying(where, after)
        self.check_quotas(where, after)
        if name in ("serve", "go_on") and dropped == self.num_dropped():
            self.check_priority(where, before, after, ranked)
        self.sweep()
        assert len(self.held) == len(self.cache.retention._records), where

    def check_dying(self, where: str, after: dict[Page, list[int]]) -> None:
        pool, pinned = self.cache.pool, self.pinned_pages()
        moving = set() if self.cache.lower is None else self.cache.lower.migration.moving_keys()
        for page, group in list(self.dying):
            key = block_key(self.key(page), group)
            if page in pinned or key in moving:
                continue
            blocks = [block for block in after.get(page, []) if self.cache.index.group_of_block(block) == group]
            assert all(pool.refcount[block] for block in blocks), f"{where}: {page} has run out and is on the device"
            below = self.host is not None and self.host.contains(key)
            assert not below, f"{where}: {page} has run out and is below"
            if not blocks:
                self.dying.remove((page, group))
                self.happened["gone"] += 1

    def check_quotas(self, where: str, after: dict[Page, list[int]]) -> None:
        policy = self.cache.evictable.policy
        assert isinstance(policy, Partitioned)
        for tenant, most in self.quotas.items():
            mine = [block for (salt, _), blocks in after.items() if salt == tenant for block in blocks]
            assert policy.used(tenant) == len(mine), f"{where}: {tenant} pays for others, or others for it"
            if len(mine) > most:
                self.happened["over quota"] += 1
                assert not any(map(self.cache.evictable.may_go, mine)), f"{where}: {tenant} is over its quota"
            if self.host is not None:
                book = self.host.book
                held = [page for page in book.pages() if book.policy.tenant_of(book.slot(page.key)) == tenant]  # type: ignore[attr-defined,arg-type]
                limit = min(most * self.layout.block_bytes // self.host.page_bytes, book.num_slots)
                assert len(held) <= limit or book.first_of(tenant) is None, f"{where}: {tenant} is over its quota below"

    def num_dropped(self) -> int:
        """Pages that did not go for want of room."""
        shown = self.cache.retention.statistics()
        assert shown is not None
        return shown.dropped_by_ttl + shown.dropped_by_quota

    def check_priority(
        self, where: str, before: dict[Page, list[int]], after: dict[Page, list[int]], ranked: dict[Page, int]
    ) -> None:
        """Of pages that could go before and can go now, none should have gone instead of one that went."""
        if self.cache.lower is not None or not self.has_full_group or len(self.groups) > 1:
            return  # what moves can't go, and a window gives pages back in between
        went = {page: rank for page, rank in ranked.items() if page not in after}
        stayed = {page: rank for page, rank in ranked.items() if page in after and page in self.evictable_pages()}
        stayed = {page: rank for page, rank in stayed.items() if self.ranks.get(page, 50) == rank}
        untouched = [rank for page, rank in stayed.items() if page not in self.touched]
        if went and untouched:
            self.happened["chosen by rank"] += 1
            worst = max((rank for page, rank in went.items() if self.ranks.get(page, 50) == rank), default=0)
            assert worst <= min(untouched), f"{where}: {went} went before {stayed}"

    def close(self) -> None:
        """What has a time to live does not outlive the cache."""
        alive = {page for held in self.held.values() if held.wish.ttl is not None for page in held.pages}
        mortal = self.dying | {(page, group) for page in alive for group in self.groups}
        for seq in list(self.cache.sequences.values()):
            self.let_go(seq)
        self.mover.release()
        self.cache.close()
        for page, group in mortal:
            key = block_key(self.key(page), group)
            assert self.host is None or not self.host.contains(key), "content outlived its cache"
