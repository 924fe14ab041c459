"""Sequences with resident limits over a host and a disk tier that fail now and then, beside a model of every byte.

A position's number is a chain over all tokens up to it (tests/simulation/stamps.py), so that any page that is wrong,
stale or another's shows by its bytes, wherever it lies. Once pages of a sequence were given back, what it computes is
something of its own: if that were ever found by content, its bytes would be wrong for whoever finds it.

Transfers run on a virtual clock, in any order. After every operation all books of the cache are checked.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvpager import KVLayout, LayerSpec, OutOfBlocks, open_cache
from kvpager.assemble import put_below
from kvpager.cache.sequence import Sequence as KVSequence
from kvpager.cache.step import Step
from kvpager.errors import ConfigError, PagesLost, TierError, WrongContent
from kvpager.eviction.lru import LRU
from kvpager.tiers.host import HostStore
from kvpager.tiers.migration import WriteBack
from kvpager.tiers.staging import NoPace
from kvpager.tiers.tier import Slot
from kvpager.types import ContentKey, TierKind
from tests.simulation.mover import SimulatedMover, VirtualClock
from tests.simulation.stamps import PageStamps, chain

LAYOUTS = {
    "full": KVLayout.mixed([LayerSpec(1, 2)] * 2, dtype="float32", page_size=2),
    "groups": KVLayout.mixed([LayerSpec(1, 2), LayerSpec(1, 2, 9)], dtype="float32", page_size=2),
}
_MOST = 48  # tokens of a sequence
OPERATIONS = {
    "open": 8, "append": 10, "step": 24, "leave": 16, "fork": 3, "truncate": 3, "free": 6,
    "page_out": 6, "page_in": 8, "lose": 1, "drop": 2, "pass_time": 8, "clear": 1, "limit": 2, "squeeze": 6,
    "resize": 1,
}  # fmt: skip


class FlakyStore(HostStore):
    """A tier as a disk is one: read part by part, some loads fail, and some pages can't be held."""

    def __init__(self, kind: TierKind, slots: int, page_bytes: int, generator: random.Random, failures: float) -> None:
        super().__init__(page_bytes, slots, LRU(slots))
        self.kind = kind  # type: ignore[misc]
        self.name = kind.name.lower()  # type: ignore[misc]
        self._random, self._failures = generator, failures

    def addresses(self, indices: np.ndarray) -> np.ndarray | None:
        return super().addresses(indices) if self.kind is TierKind.HOST else None

    def hold(self, key: ContentKey) -> Slot | None:
        return None if self._random.random() < self._failures else super().hold(key)

    def read(self, slots: Sequence[Slot], into: Sequence[np.ndarray]) -> "list[int | TierError]":
        found = super().read(slots, into)
        for at, page in enumerate(into):
            if self._random.random() < self._failures:
                found[at] = WrongContent("rotten")
                page[:] = 0xEE
        return found


class NoWindow:
    """Nothing is read through it here."""

    num_bytes = 0
    pace = NoPace()

    def close(self) -> None:
        pass


@dataclass(eq=False)
class Model:
    seq: KVSequence
    tokens: list[int]
    numbers: list[int]
    gone: list[set[int]]
    seed: int = 0
    steps: int = 0


@dataclass(eq=False)
class OpenStep:
    step: Step
    members: list[Model]
    new: list[list[int]]
    below: list[tuple[TierKind, int, np.ndarray, list[int]]] = field(default_factory=list)  # pages that it may read


class PagedWorld:
    """``happened`` counts what a run has met."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.layout = self.random.choice(list(LAYOUTS.values()))
        self.cache = open_cache(
            self.layout, num_blocks=self.random.choice([18, 26]), max_capacity=30 * self.layout.block_stride, debug=True
        )
        clock = VirtualClock()
        self.mover = SimulatedMover(clock, self.random, lambda lane: 0.02 * self.random.random())
        failures = self.random.choice([0.0, 0.2])
        size = self.layout.block_stride
        self.stores = [
            FlakyStore(TierKind.HOST, self.random.choice([6, 30]), size, self.random, failures),
            FlakyStore(TierKind.DISK, 400, size, self.random, failures),
        ]
        write_back = self.random.choice(list(WriteBack))
        put_below(
            self.cache, self.stores, self.mover, clock, write_back, 8 * size, None,
            nonce=b"nonce", window=NoWindow(),  # type: ignore[arg-type]
        )  # fmt: skip
        self.cache.paging.partings.at_once = self.random.choice([3, 1024])
        self.stamps = PageStamps(self.layout)
        self.models: list[Model] = []
        self.steps: list[OpenStep] = []
        self.happened: Counter[str] = Counter()
        self.last_seed = 0
        self.private: set[ContentKey] = set()

    def run(self, count: int) -> None:
        for name in self.random.choices(list(OPERATIONS), list(OPERATIONS.values()), k=count):
            getattr(self, name)()
            self.cache.check()
            for model in self.models:
                self.verify(model)
            for opened in self.steps:
                for tier, _, slots, _ in opened.below:
                    assert all(map(self._store(tier).book.is_held, slots.tolist())), "a step reads what nobody holds"
        self.finish()

    def finish(self) -> None:
        """Everything goes; then nothing is held anywhere, and nothing private is left."""
        while self.steps:
            self.leave()
        for model in self.models:
            model.seq.free()
        assert self.cache.lower is not None
        self.cache.lower.settle(100)
        for _ in range(100):
            self.cache.tick()
        self.cache.check()
        counts = self.cache.pool.counts()
        assert (counts.used, counts.moving) == (0, 0)
        for store in self.stores:
            usage = store.usage()
            assert (usage.used, usage.moving) == (0, 0)
            store.check()
        copies = self.cache.paging.copies
        assert copies is not None
        assert copies.num_unwanted == 0
        assert not self.private & {page.key for store in self.stores for page in store.book.pages()}
        self.cache.clear_prefix()
        assert self.cache.index.num_nodes == 0
        assert self.cache.pool.counts().free == counts.total
        for name in ("out", "back", "dropped", "lost"):
            self.happened[name] += getattr(self.cache.paging.counts, name)
        self.happened["hits below"] += self.cache.statistics().prefix.by_tier[TierKind.DISK]
        self.cache.close()

    # -- bytes --------------------------------------------------------------------------------------------------

    def verify(self, model: Model) -> None:
        seq, page_size = model.seq, self.layout.page_size
        assert seq.length == len(model.numbers)
        for group, table in enumerate(seq.tables):
            first = int(self.cache.rows.first_page[group, seq.row])
            if seq.away is not None:
                gone = set(np.flatnonzero(seq.away[group].gone).tolist())
                assert seq.is_lost or gone == {page for page in model.gone[group] if page >= first}
                self.private |= {copy.page.key for copy in seq.away[group].copies.values() if copy.is_private}
            for tier in (TierKind.DEVICE, TierKind.HOST, TierKind.DISK):
                pages = np.flatnonzero(table.tiers() == tier)
                positions = (pages[:, None] * page_size + np.arange(page_size)).ravel()
                positions = positions[positions < seq.length]
                if len(positions) == 0:
                    continue
                entries = table.snapshot()[positions // page_size]
                ids = entries if tier is TierKind.DEVICE else -2 - entries
                numbers = [model.numbers[position] for position in positions.tolist()]
                wrong = self.stamps.wrong(self._memory(tier), group, ids, positions % page_size, numbers)
                assert wrong is None, f"position {positions[wrong]} of group {group} is wrong in {tier.name}"

    def _memory(self, tier: TierKind) -> np.ndarray:
        if tier is TierKind.DEVICE:
            return self.cache.arena.blocks  # type: ignore[attr-defined,no-any-return]
        return self._store(tier)._arena.blocks

    def _store(self, tier: TierKind) -> FlakyStore:
        return self.stores[tier - TierKind.HOST]

    # -- choosing -----------------------------------------------------------------------------------------------

    def _pick(self, models: list[Model]) -> Model | None:
        return self.random.choice(models) if models else None

    def _idle(self) -> list[Model]:
        return [model for model in self.models if not model.steps]

    def _well(self) -> list[Model]:
        return [model for model in self._idle() if not model.seq.is_lost]

    def _tokens(self, most: int) -> list[int]:
        return [self.random.randint(1, 2) for _ in range(self.random.randint(1, most))]

    # -- operations ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        if len(self.models) >= 4:
            return
        tokens = ([1] * 10 if self.random.random() < 0.6 else []) + self._tokens(14)
        limit = self.random.choice([None, 3, 4, 6])
        until = self.random.choice([None, None, 6])
        non_resident = self.random.random() < 0.5
        seq = self.cache.sequence(
            tokens, resident_limit=limit, non_resident=non_resident, publish_until=until,
            came_up=None if self.random.random() < 0.5 else {},
        )  # fmt: skip
        self.happened["non resident prefix"] += self.cache.paging.num_non_resident(seq) > 0
        numbers = chain(0, tokens)[: seq.prefix_tokens]
        self.models.append(Model(seq, tokens, numbers, [set() for _ in self.layout.groups]))

    def append(self) -> None:
        model = self._pick(self.models)
        if model is not None and len(model.tokens) < _MOST:
            more = self._tokens(6)
            model.seq.append(more)
            model.tokens += more

    def step(self) -> None:
        ready = [model for model in self._well() if len(model.tokens) > model.seq.length]
        members = self.random.sample(ready, min(len(ready), self.random.randint(1, 2)))
        if not members or len(self.steps) > 1:
            return
        counts = [self.random.randint(1, min(4, len(each.tokens) - each.seq.length)) for each in members]
        for model, count in zip(members, counts, strict=True):
            if self.random.random() < 0.3:
                self.happened["could step" if self.cache.paging.can_step(model.seq, count) else "could not step"] += 1
        try:
            step = self.cache.step({each.seq: count for each, count in zip(members, counts, strict=True)})
        except OutOfBlocks:
            self.happened["out of blocks"] += 1
        except PagesLost as lost:
            self._lost(lost)
        except ConfigError as error:
            if "may have" not in str(error):
                raise
            self.happened["limit too small"] += 1
        else:
            self._begin(step, members, counts)

    def _begin(self, step: Step, members: list[Model], counts: list[int]) -> None:
        new, seen = [], []
        for s, (model, count) in enumerate(zip(members, counts, strict=True)):
            start = len(model.numbers)
            before = model.numbers[-1] if model.numbers else 0
            new.append(chain(before ^ model.seed, model.tokens[start : start + count]))
            model.steps += 1
            limit = model.seq.resident_limit
            for group, table in enumerate(model.seq.tables):
                if limit is not None:
                    assert (table.snapshot()[: len(table)] >= 0).sum() <= limit
                below = table.tiers() > TierKind.DEVICE
                rest = step.batch.non_resident.get((group, s))
                assert below.any() == (rest is not None)
                self.happened["step below"] += bool(below.any())
                for tier in (TierKind.HOST, TierKind.DISK):
                    pages = np.flatnonzero(table.tiers() == tier)
                    if len(pages):
                        assert rest is not None
                        seen.append((tier, group, rest.slot[pages], self._numbers(model, pages)))
        self.steps.append(OpenStep(step, members, new, seen))

    def _numbers(self, model: Model, pages: np.ndarray) -> list[int]:
        size = self.layout.page_size
        return [number for page in pages.tolist() for number in model.numbers[page * size : (page + 1) * size]]

    def leave(self) -> None:
        if not self.steps:
            return
        opened = self.steps.pop(self.random.randrange(len(self.steps)))
        batch = opened.step.batch
        for tier, group, slots, expected in opened.below:
            ids, places = np.repeat(slots, self.layout.page_size), np.arange(len(expected)) % self.layout.page_size
            wrong = self.stamps.wrong(self._memory(tier), group, ids, places, expected)
            assert wrong is None, f"a page in {tier.name} changed while a step read it"
        numbers = [number for each in opened.new for number in each]
        for group in range(self.layout.num_groups):
            slots = batch.positions() % self.layout.page_size
            self.stamps.write(self._memory(TierKind.DEVICE), group, batch.token_blocks(group), slots, numbers)
        fails = self.random.random() < 0.1
        try:
            with opened.step:
                if fails:
                    raise KeyError
        except KeyError:
            pass
        for model, new in zip(opened.members, opened.new, strict=True):
            model.steps -= 1
            if not fails and not model.seq.is_freed:
                model.numbers += new

    def fork(self) -> None:
        model = self._pick(self._idle())
        if model is not None and len(self.models) < 5:
            seq, gone = model.seq.fork(), [set(each) for each in model.gone]
            self.models.append(Model(seq, list(model.tokens), list(model.numbers), gone, model.seed))

    def truncate(self) -> None:
        model = self._pick(self._well())
        if model is None:
            return
        length = self.random.randint(0, len(model.numbers))
        try:
            model.seq.truncate(length)
        except ConfigError as error:
            if "given back" not in str(error):
                raise
            return
        self.happened["truncated"] += 1
        del model.tokens[length:], model.numbers[length:]
        pages = self.layout.num_pages(length)
        model.gone = [{page for page in each if page < pages} for each in model.gone]

    def free(self) -> None:
        model = self._pick(self.models)
        if model is not None:
            self.happened["freed during a step"] += (
                model.steps > 0 and self.cache.paging.num_non_resident(model.seq) > 0
            )
            model.seq.free()
            self.models.remove(model)

    def limit(self) -> None:
        model = self._pick(self._well())
        if model is not None:
            model.seq.resident_limit = self.random.choice([None, 3, 5])

    def page_out(self) -> None:
        model = self._pick(self._well())
        if model is None:
            return
        group = self.random.randrange(self.layout.num_groups)
        pages = self.cache.paging._below.departures.candidates(model.seq, group)
        self.cache.paging.begin_writing(model.seq, 1)
        some = np.sort(pages[: self.random.randint(0, 4)])
        self.cache.paging.page_out(model.seq, group, some)

    def page_in(self) -> None:
        model = self._pick(self._well())
        if model is None or model.seq.away is None:
            return
        group = self.random.randrange(self.layout.num_groups)
        below = np.flatnonzero(model.seq.tables[group].tiers() > TierKind.DEVICE)
        some = below[: self.random.randint(1, 3)]
        try:
            self.cache.paging.page_in(model.seq, group, some)
        except OutOfBlocks:
            self.happened["no room to page in"] += 1
        except PagesLost as lost:
            self._lost(lost)
        else:
            assert (model.seq.tables[group].snapshot()[some] >= 0).all()

    def lose(self) -> None:
        model = self._pick([model for model in self.models if self.cache.paging.num_non_resident(model.seq)])
        if model is None:
            return
        for group, table in enumerate(model.seq.tables):
            below = np.flatnonzero(table.tiers() > TierKind.DEVICE).tolist()
            if below:
                pages = {(model.seq.row, group): self.random.sample(below, 1)}
                self._lost(PagesLost(pages, TierError("rotten")))
                return

    def _lost(self, lost: PagesLost) -> None:
        for seq in self.cache.paging.lose(lost):
            assert seq.is_lost
        self.happened["lost"] += 1

    def drop(self) -> None:
        model = self._pick(self._well())
        if model is None:
            return
        group = self.random.randrange(self.layout.num_groups)
        full = min(model.seq.length // self.layout.page_size, len(model.seq.tables[group]) - 1)
        first = int(self.cache.rows.first_page[group, model.seq.row])
        pages = sorted(self.random.sample(range(first, full), min(2, max(0, full - first))))
        self.cache.paging.drop_pages(model.seq, group, np.array(pages, np.int64))
        model.gone[group] |= set(pages)
        if pages:
            self.last_seed += 1
            model.seed = self.last_seed << 32

    def pass_time(self) -> None:
        assert self.cache.lower is not None
        self.cache.lower.wait(0.02)
        self.cache.tick()

    def squeeze(self) -> None:
        """Somebody else needs blocks."""
        counts = self.cache.pool.counts()
        self.cache._reclaimer.make_free(self.random.randint(0, counts.free + counts.cached))

    def resize(self) -> None:
        if self.steps:
            return
        try:
            self.cache.resize(self.random.randint(12, 30))
        except OutOfBlocks:
            self.happened["resize refused"] += 1

    def clear(self) -> None:
        if self.random.random() < 0.5:
            self.cache.clear_prefix()
