"""A cache over tiers that fail, on a clock that moves when it is told to, beside the simplest model of it.

The seed decides everything: layout, dtype, tiers, options, operations, delays and faults. After every operation the
books of all tiers are checked, and the bytes of everything that can be read or found: pages that sequences map, pages
that the prefix index finds on the device, and pages in every tier. The model of a page is what it must hold by its
content key, so a page under a wrong name is seen wherever it is.

Time passes between the operations. Steps write their rows when they are left, as late as a kernel may.
"""

import random
from array import array
from collections import Counter
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from kvpager import ConfigError, KVLayout, LayerSpec, OutOfBlocks, Scope, Watermarks, assemble, open_cache
from kvpager.cache.lower_pages import Promotion
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step
from kvpager.prefix.hashing import block_key, page_key, root_key
from kvpager.tiers.host import HostStore
from kvpager.tiers.migration import WriteBack
from kvpager.tiers.tier import LowerTier
from kvpager.types import ContentKey
from tests.simulation.mover import NEVER, SimulatedMover, VirtualClock
from tests.simulation.stamps import PageStamps, chain
from tests.simulation.tiers import Media, SimulatedDisk, SimulatedRemote, Weather
from tests.tiers import judging

SECONDS = 60.0
_LAYOUTS = {
    "full": (None,),
    "two full groups": (None, None, 5),
    "window": (5,),
    "full and window": (None, 5),
    "two windows": (3, 9),
    "windows and full": (None, 4, 8),
}
_HEAD_DIM = {"float32": 2, "bfloat16": 4, "float16": 4, "int8": 8, "float8_e4m3": 8}
_TIERS = [("host",), ("disk",), ("remote",), ("host", "disk"), ("host", "remote"), ("disk", "remote")]
_TIERS += [("host", "disk", "remote")] * 2
_OPERATIONS = {
    "serve": 12,
    "open_sequence": 6,
    "promote": 8,
    "arrive": 6,
    "append": 4,
    "open_step": 3,
    "leave_step": 4,
    "fork": 2,
    "truncate": 2,
    "free": 5,
    "reclaim": 4,
    "idle": 3,
    "change_weather": 3,
    "rewrite": 1,
    "rot_in_host": 1,
    "lose_in_remote": 1,
    "forget": 1,
    "clear_prefix": 0.3,
    "set_fingerprint": 1,
    "resize": 1,
    "reopen": 0.5,
    "crash": 0.3,
}


@dataclass(frozen=True)
class Options:
    """What a seed has chosen; printed when it fails."""

    layout: str
    dtype: str
    page_size: int
    tiers: tuple[str, ...]
    write_back: str
    watermarks: Watermarks | None
    num_blocks: int
    host_pages: int
    disk_pages: int
    max_moving: int  # pages
    load_deadline: float
    delay: float  # seconds a transfer takes, about
    hang: float  # chance of a job
    judges: bool  # the eviction policy
    exclusive: frozenset[str]  # tiers

    @classmethod
    def chosen_by(cls, generator: random.Random) -> "Options":
        choose = generator.choice
        layout = choose(list(_LAYOUTS))
        groups = len(_LAYOUTS[layout])
        tiers, write_back = choose(_TIERS), choose([each.value for each in WriteBack])
        may_be_exclusive = [name for name in tiers if name != "remote" and write_back != "through"]
        return cls(
            layout=layout,
            dtype=choose(list(_HEAD_DIM)),
            page_size=choose([1, 2, 2, 4]),
            tiers=tiers,
            write_back=write_back,
            watermarks=choose([None, Watermarks(1, 4, 8), Watermarks(2, 8, 12)]),
            num_blocks=groups * generator.randint(14, 24),
            host_pages=groups * choose([3, 6, 12, 48]),
            disk_pages=groups * generator.randint(8, 64),
            max_moving=choose([1, 3, 8, 1000]),
            load_deadline=choose([0.3, 2.0, 10.0]),
            delay=choose([0.001, 0.2, 1.0, 4.0]),
            hang=choose([0.0, 0.0, 0.02, 0.1]),
            judges=choose([True, False]),
            exclusive=frozenset(name for name in may_be_exclusive if choose([True, False])),
        )

    def make_layout(self) -> KVLayout:
        specs = [LayerSpec(1, _HEAD_DIM[self.dtype], window) for window in _LAYOUTS[self.layout]]
        return KVLayout.mixed(specs, dtype=self.dtype, page_size=self.page_size)


@dataclass(eq=False)
class Model:
    """``numbers``: of the positions whose rows are written (stamps.py). ``root``: what its keys descend from."""

    seq: Sequence
    weights: int
    seed: int
    root: ContentKey
    numbers: list[int]
    step: "OpenStep | None" = None


@dataclass(eq=False)
class OpenStep:
    step: Step
    members: list[Model]
    new_numbers: list[list[int]]


@dataclass(eq=False)
class Waiting:
    """A prompt whose pages are on their way."""

    tokens: list[int]
    scope: Scope
    promotion: Promotion | None


class Truth:
    """What every page must hold that was ever full, by its key and group."""

    def __init__(self, stamps: PageStamps) -> None:
        self._stamps = stamps
        self.keys: set[ContentKey] = set()  # of pages; those below are of blocks
        self.pages: dict[tuple[ContentKey, int], np.ndarray] = {}
        self.names: dict[ContentKey, tuple[ContentKey, int]] = {}  # block key -> page key and group
        self.weights: dict[ContentKey, int] = {}  # with which version of them a page was computed

    def learn(self, root: ContentKey, weights: int, tokens: "array[int]", numbers: list[int]) -> None:
        key, size = root, self._stamps.layout.page_size
        for at in range(0, len(numbers) // size * size, size):
            key = page_key(key, tokens[at : at + size].tobytes(), b"")
            if key not in self.keys:
                self.keys.add(key)
                self.weights[key] = weights
                for group in range(self._stamps.layout.num_groups):
                    self.pages[key, group] = self._stamps.page(group, numbers[at : at + size])
                    self.names[block_key(key, group)] = key, group

    def check(self, blocks: np.ndarray, where: dict[int, tuple[ContentKey, int]], place: str) -> None:
        """``where``: which page of which group is in which of the ``blocks``."""
        for group in range(self._stamps.layout.num_groups):
            found = [(at, name) for at, name in where.items() if name[1] == group]
            if found:
                expected = np.array([self.pages[name] for _, name in found])
                held = self._stamps.pages(blocks, group, [at for at, _ in found])
                assert np.array_equal(held, expected), f"a page of {place} holds other bytes"


class World:
    """``happened`` counts what a run has met, so that a test can tell that it met it."""

    def __init__(self, seed: int, check_every: int = 1) -> None:
        self._random = random.Random(seed)
        self._check_every = check_every
        self.options = Options.chosen_by(self._random)
        self._eviction = ("adaptive" if seed % 2 else "known_worth") if self.options.judges else "lru"
        self.layout = self.options.make_layout()
        self.stamps = PageStamps(self.layout)
        self.clock = VirtualClock()
        self.truth = Truth(self.stamps)
        self.happened: Counter[str] = Counter()
        self.num_operations = 0
        self.operation = "open"
        self._weights = 0  # version of the model's weights
        self._documents = [[self._random.randint(1, 2) for _ in range(40)] for _ in range(5)]
        self._media = {"disk": Media(self.options.disk_pages), "remote": Media(1 << 30)}
        self._is_calm = False
        self._open()

    # -- opening and closing ------------------------------------------------------------------------------------

    def _open(self) -> None:
        options, stride = self.options, self.layout.block_stride
        self.models: list[Model] = []
        self.open_steps: list[OpenStep] = []
        self.waiting: list[Waiting] = []
        self._rotten: dict[int, ContentKey] = {}  # host slots that were changed on purpose
        self._counters: dict[str, float] = {}
        self.mover = mover = SimulatedMover(self.clock, self._random, self._delay)
        self._hanging_lanes: set[str] = set()
        with judging.registered():
            self.cache = open_cache(
                self.layout,
                eviction=self._eviction,
                num_blocks=options.num_blocks,
                max_capacity=2 * options.num_blocks * stride,
                watermarks=options.watermarks,
                fingerprint=str(self._weights).encode(),
                clock=self.clock,
            )
        self.host: HostStore | None = None
        self.tiers: list[LowerTier] = []
        for name in options.tiers:
            if name == "host":
                below = assemble.policy_below(self.cache.evictable.policy, options.host_pages, self.clock)
                self.host = HostStore(stride, options.host_pages, below, exclusive=name in options.exclusive)
                self.tiers.append(self.host)
            else:
                kind = SimulatedDisk if name == "disk" else SimulatedRemote
                tier = kind(self._media[name], stride, self._random, lambda: mover.is_working)
                tier.is_exclusive = name in options.exclusive
                self.tiers.append(tier)
        write_back = WriteBack(options.write_back)
        assemble.put_below(
            self.cache, self.tiers, mover, self.clock, write_back, options.max_moving * stride, options.load_deadline
        )
        assert self.cache.lower is not None
        self.lower = self.cache.lower
        for tier in self.tiers:
            if tier.is_exclusive:
                self._watch(tier)

    def _watch(self, tier: LowerTier) -> None:
        """An exclusive tier may be told to drop only what the device has."""
        forget = tier.forget

        def watched(keys: List[ContentKey]) -> None:
            index = self.cache.index
            on_device = {self.lower.page(block).key for block in index.all_blocks().tolist()}
            assert self.operation == "forget" or on_device.issuperset(keys), "the last copy of a page is dropped"
            self.happened["went up for good"] += any(tier.contains(key) for key in keys)
            forget(keys)

        tier.forget = watched  # type: ignore[method-assign]

    def _delay(self, lane: str) -> float:
        if self._is_calm:
            return 0.0
        if lane in self._hanging_lanes or self._random.random() < self.options.hang:
            return NEVER
        return self._random.random() * self.options.delay * (10 if self._random.random() < 0.05 else 1)

    def reopen(self) -> None:
        """Closes the cache, as at the end of a process; what outlives it is found by the next one."""
        for opened in list(self.open_steps):
            self._leave(opened, has_succeeded=True)
        begin = self.clock.now
        self.cache.close()
        assert self.clock.now - begin <= 60, "closing took too long"
        assert self.cache.pool.counts().used == 0
        self.happened["reopened"] += 1
        self._open()

    def crash(self) -> None:
        self.happened["crashed"] += 1
        self._open()

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        names, weights = list(_OPERATIONS), list(_OPERATIONS.values())
        stop_at = SECONDS
        while self.clock.now < stop_at:
            self.operation = self._random.choices(names, weights)[0]
            begin = self.clock.now
            getattr(self, self.operation)()
            assert self.clock.now - begin <= 60, "a call waited too long"
            self.mover.run_due()
            self.num_operations += 1
            if self.num_operations % self._check_every == 0:
                self.check()
            self.clock.advance(self._random.expovariate(0.8))
            self.mover.run_due()
        self.finish()

    def finish(self) -> None:
        """Liveness: when everything that moves may end, nothing is moving and nothing is held."""
        self.operation = "finish"
        self._is_calm = True
        for tier in self.tiers:
            if isinstance(tier, SimulatedDisk):
                tier.weather = Weather()
        for opened in list(self.open_steps):
            self._leave(opened, has_succeeded=True)
        for _ in range(1000):
            self.mover.release()
            self.clock.advance(1.0)
            self.lower.collect()
            if not self.mover.num_open and not self.lower.migration.num_open:
                break
        self.check()
        assert self.lower.migration.num_open == 0, "a transfer never ends"
        assert self.lower.held_blocks() == [], "a block is held for ever"
        assert self.lower.num_doomed == 0
        assert self.cache.pool.counts().moving == 0
        assert [tier.usage().moving for tier in self.tiers] == [0] * len(self.tiers)
        for model in list(self.models):
            self._free(model)
        counts = self.cache.pool.counts()
        assert counts.used == counts.moving == 0, "an empty cache uses blocks"
        self.check()
        for tier in self.tiers:
            if isinstance(tier, SimulatedDisk):
                self.happened.update(tier.happened)
            else:
                self.happened["quarantined"] += tier.statistics().quarantined
        self.happened["hung"] += self.mover.num_hung
        self.happened["declined"] += sum(tier.statistics().declined for tier in self.tiers)
        self.happened["not worth keeping"] += self.lower.migration.statistics().not_worth_keeping
        self.cache.close()
        assert self.mover.num_open == 0

    # -- choosing -----------------------------------------------------------------------------------------------

    def _tokens(self) -> list[int]:
        """A document's head, mostly, and something new behind it."""
        document = self._random.choice(self._documents)
        head = document[: self._random.randint(0, 9 * self.layout.page_size)]
        return head + self._few_tokens()

    def _few_tokens(self) -> list[int]:
        return [self._random.randint(1, 2) for _ in range(self._random.randint(1, 2 * self.layout.page_size))]

    def _scope(self) -> Scope:
        return Scope(salt="x") if self._random.random() < 0.1 else Scope()

    def _pick(self, models: list[Model]) -> Model | None:
        return self._random.choice(models) if models else None

    def _idle(self) -> list[Model]:
        return [model for model in self.models if model.step is None]

    def _add(self, seq: Sequence) -> Model:
        assert seq.tokens is not None
        seed = chain(self._weights, list(seq.scope.salt.encode()))[-1] if seq.scope.salt else self._weights
        root = root_key(str(self._weights).encode(), self.layout.describe(), seq.scope)
        model = Model(seq, self._weights, seed, root, chain(seed, seq.tokens[: seq.prefix_tokens]))
        self.models.append(model)
        assert seq.prefix_tokens < len(seq.tokens)
        assert sum(seq.prefix_by_tier.values()) == seq.prefix_tokens
        for tier, tokens in seq.prefix_by_tier.items():
            self.happened[f"hit {tier.name}"] += tokens > 0
        return model

    # -- operations ---------------------------------------------------------------------------------------------

    def open_sequence(self) -> Model:
        """Waits for what the tiers have."""
        if len(self.models) >= 3:
            self.free()
        model = self._add(self.cache.sequence(self._tokens(), scope=self._scope()))
        if self._random.random() < 0.95:
            self._open_step([model])
        return model

    def serve(self) -> None:
        """A request from its beginning to its end."""
        model = self.open_sequence()
        if model.step is not None:
            self._leave(model.step, has_succeeded=True)
        if model in self.models:
            self._free(model)

    def promote(self) -> None:
        """Begins to bring up what the tiers have, and asks those that have to be asked."""
        tokens, scope = self._tokens(), self._scope()
        match = self.lower.find(array("i", tokens), scope, len(tokens) - 1)
        promotion = None
        if match is not None:
            self.lower.probe(match)
            before = self.clock.now
            promotion = self.lower.promote(match)
            assert self.clock.now == before, "a promotion waits for nothing"
            self.happened["promoted"] += promotion is not None
        self.waiting.append(Waiting(tokens, scope, promotion))
        if len(self.waiting) > 4:
            self.arrive()

    def arrive(self) -> None:
        """A prompt that waited becomes a sequence; its pages are there by now, or they are not."""
        if not self.waiting:
            return
        if len(self.models) >= 3:
            self.free()
        prompt = self.waiting.pop(self._random.randrange(len(self.waiting)))
        if prompt.promotion is not None:
            self.happened["arrived late" if prompt.promotion.is_late else "arrived"] += prompt.promotion.is_over
        before = self.clock.now
        options = {} if prompt.promotion is None else {"came_up": prompt.promotion.page_tier}
        self._add(self.cache.sequence(prompt.tokens, scope=prompt.scope, **options))
        assert self.clock.now == before or prompt.promotion is None, "who promoted before does not wait"

    def append(self) -> None:
        model = self._pick(self._idle())
        if model is not None and model.seq.num_tokens < 12 * self.layout.page_size:
            model.seq.append(self._few_tokens())
            if self._random.random() < 0.6:
                self._open_step([model])

    def open_step(self) -> None:
        ready = [model for model in self._idle() if model.seq.num_tokens > model.seq.length]
        self._random.shuffle(ready)
        if ready and len(self.open_steps) < 3:
            self._open_step(ready[:2])

    def _open_step(self, members: list[Model]) -> None:
        counts = {model.seq: model.seq.num_tokens - model.seq.length for model in members}
        if self._random.random() < 0.2:
            counts = dict.fromkeys(counts, 1)
        try:
            step = self.cache.step(counts)
        except OutOfBlocks:
            self.happened["out of blocks"] += 1
            self.free()
            return
        new = []
        for model, start, stop in zip(members, step.batch.starts.tolist(), step.batch.stops.tolist(), strict=True):
            assert start == len(model.numbers)
            assert model.seq.tokens is not None
            new.append(chain(model.numbers[-1] if start else model.seed, model.seq.tokens[start:stop]))
        opened = OpenStep(step, list(members), new)
        for model in members:
            model.step = opened
        self.open_steps.append(opened)
        if self._random.random() < 0.7:
            self._leave(opened, has_succeeded=True)

    def leave_step(self) -> None:
        if self.open_steps:
            opened = self._random.choice(self.open_steps)
            self._leave(opened, has_succeeded=self._random.random() < 0.9)

    def _leave(self, opened: OpenStep, has_succeeded: bool) -> None:
        batch, blocks = opened.step.batch, self.cache.arena.blocks  # type: ignore[attr-defined]
        numbers = [number for each in opened.new_numbers for number in each]
        if not has_succeeded:
            numbers = [number ^ 0xDEAD for number in numbers]
        slots = batch.positions() % self.layout.page_size
        for group in range(self.layout.num_groups):
            self.stamps.write(blocks, group, batch.token_blocks(group), slots, numbers)
        for model, new in zip(opened.members, opened.new_numbers, strict=True):
            model.step = None
            if has_succeeded:
                model.numbers += new
                assert model.seq.is_freed or model.seq.tokens is not None
                if not model.seq.is_freed:
                    self.truth.learn(model.root, model.weights, model.seq.tokens, model.numbers)
        self.open_steps.remove(opened)
        if has_succeeded:
            opened.step.__exit__(None, None, None)
        else:
            opened.step.__exit__(RuntimeError, RuntimeError(), None)
            self.happened["failed step"] += 1

    def fork(self) -> None:
        model = self._pick(self._idle())
        if model is not None and len(self.models) < 3:
            self.models.append(Model(model.seq.fork(), model.weights, model.seed, model.root, list(model.numbers)))

    def truncate(self) -> None:
        model = self._pick(self._idle())
        if model is not None:
            self._truncate(model, self._random.randint(0, len(model.numbers)))

    def _truncate(self, model: Model, length: int) -> None:
        try:
            model.seq.truncate(length)
        except ConfigError:
            assert any(group.window is not None for group in self.layout.groups)
        else:
            del model.numbers[length:]

    def rewrite(self) -> None:
        """A sequence goes on from the middle of a page that nobody finds any more, and that may be on its way down."""
        model = self._pick(self._idle())
        if model is not None and len(model.numbers) > 1:
            self.clear_prefix()
            length = len(model.numbers)
            self._truncate(model, self._random.randint(max(1, length - self.layout.page_size - 1), length - 1))
            model.seq.append(self._few_tokens())
            self._open_step([model])

    def free(self) -> None:
        model = self._pick(self.models)
        if model is not None:
            self._free(model)

    def _free(self, model: Model) -> None:
        self.happened["freed during a step"] += model.step is not None
        model.seq.free()
        self.models.remove(model)

    def reclaim(self) -> None:
        counts = self.cache.pool.counts()
        self.cache._reclaimer.make_free(counts.free + self._random.randint(1, 6))

    def idle(self) -> None:
        self.clock.advance(self._random.random() * 3)
        self.mover.run_due()
        self.lower.collect()

    def resize(self) -> None:
        if self.open_steps:
            return
        groups = self.layout.num_groups
        size = groups * self._random.randint(8, 24)
        try:
            self.cache.resize(size)
        except OutOfBlocks:
            self.happened["resize refused"] += 1
        except ConfigError:
            assert self.mover.num_open, "refused while nothing moves"
            self.happened["resize refused"] += 1
        else:
            self.happened["resized"] += 1

    def clear_prefix(self) -> None:
        self.cache.clear_prefix()
        assert self.cache.index.num_entries == 0

    def set_fingerprint(self) -> None:
        self.promote()
        self._weights = self._random.randint(0, 2)  # old weights may come back, and their pages with them
        self.cache.set_fingerprint(str(self._weights).encode())
        self.waiting.clear()

    # -- faults -------------------------------------------------------------------------------------------------

    def change_weather(self) -> None:
        tier = self._random.choice(self.tiers)
        chance = self._random.choice([0.0, 0.0, 0.1, 1.0])
        lane = f"{tier.name} {self._random.choice(['load', 'store'])}"
        self._hanging_lanes = {lane} if self._random.random() < 0.1 else set()
        if isinstance(tier, SimulatedDisk):
            faults = ["store_error", "load_error", "probe_error", "raises", "rot", "lost"]
            tier.weather = Weather(**{name: chance for name in faults if self._random.random() < 0.4})
            tier.weather.is_full = self._random.random() < 0.1
            tier.weather.is_read_only = self._random.random() < 0.1

    def rot_in_host(self) -> None:
        """Bits of pages in the host tier fall over."""
        if self.host is None:
            return
        book = self.host._book
        self._rotten = {slot: key for slot, key in self._rotten.items() if _holds(self.host, slot, key)}
        for slot, page in book._page_of.items():
            if slot not in book._writing and slot not in self._rotten and self._random.random() < 0.5:
                self.host._arena.blocks[slot][self._random.randrange(self.layout.block_stride)] ^= 1
                self._rotten[slot] = page.key
                self.happened["rotten in host"] += 1

    def lose_in_remote(self) -> None:
        for tier in self.tiers:
            if isinstance(tier, SimulatedRemote):
                tier.forget_one()

    def forget(self) -> None:
        """A tier forgets a page, whatever is being done with it."""
        tier = self._random.choice(self.tiers)
        keys = tier._book.keys() if isinstance(tier, HostStore) else list(tier.found)  # type: ignore[attr-defined]
        if keys:
            tier.forget([self._random.choice(keys)])

    # -- checking -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.cache.check()
        for model in self.models:
            self._check_sequence(model)
        self._check_index()
        self._check_tiers()
        self._check_statistics()

    def _check_sequence(self, model: Model) -> None:
        assert model.seq.length == len(model.numbers)
        blocks, size = self.cache.arena.blocks, self.layout.page_size  # type: ignore[attr-defined]
        for group, table in enumerate(model.seq.tables):
            first = int(self.cache.rows.first_page[group, model.seq.row]) * size
            positions = np.arange(first, len(model.numbers))
            if len(positions):
                ids = table.snapshot()[positions // size]
                wrong = self.stamps.wrong(blocks, group, ids, positions % size, model.numbers[first:])
                assert wrong is None, f"group {group} at position {first + (wrong or 0)} holds other bytes"

    def _check_index(self) -> None:
        index = self.cache.index
        where = {
            block: (index.key(index.node_of_block(block)), index.group_of_block(block))
            for block in index.all_blocks().tolist()
        }
        self.truth.check(self.cache.arena.blocks, where, "the device")  # type: ignore[attr-defined]
        for key, _ in where.values():
            assert self.truth.weights[key] == self._weights, "pages of other weights are published"

    def _check_tiers(self) -> None:
        for tier in self.tiers:
            usage = tier.usage()
            assert usage.free + usage.used + usage.cached + usage.moving == usage.blocks, f"I1 in {tier.name}: {usage}"
            assert min(usage.free, usage.used, usage.cached, usage.moving) >= 0
            assert usage.used_bytes <= usage.capacity_bytes, f"I20 in {tier.name}"
            if isinstance(tier, HostStore):
                self._check_host(tier)
            else:
                self._check_media(self._media[tier.name])

    def _check_host(self, tier: HostStore) -> None:
        book = tier._book
        rotten = {slot for slot, key in self._rotten.items() if _holds(tier, slot, key)}
        where = {book._slot_of[page.key]: self.truth.names[page.key] for page in tier.pages()}
        self.truth.check(tier._arena.blocks, {at: where[at] for at in where.keys() - rotten}, tier.name)

    def _check_media(self, media: Media) -> None:
        sound = [stored for stored in media.stored.values() if not stored.is_rotten]
        if sound:
            where = {at: self.truth.names[stored.page.key] for at, stored in enumerate(sound)}
            self.truth.check(np.array([stored.bytes for stored in sound]), where, "the media")

    def _check_statistics(self) -> None:
        stats = self.cache.statistics()
        prefix, migration = stats.prefix, stats.migration
        assert sum(prefix.by_tier.values()) == prefix.hit_tokens <= prefix.prompt_tokens
        assert migration is not None
        stride = self.layout.block_stride
        counters = {"late": migration.late, "lost": migration.lost, "hits": prefix.hit_tokens}
        counters["not worth keeping"] = migration.not_worth_keeping
        assert migration.moving_bytes % stride == 0
        for tier in stats.tiers:
            for way, counts in (("stored", tier.stored), ("loaded", tier.loaded)):
                assert counts.bytes == counts.pages * stride
                counters[f"{tier.name} {way}"] = counts.pages
                counters[f"{tier.name} {way} failed"] = counts.failed
        for name, value in counters.items():
            assert value >= self._counters.get(name, 0), f"{name} went down"
        self._counters = dict(counters)


def _holds(tier: HostStore, slot: int, key: ContentKey) -> bool:
    page = tier._book._page_of.get(slot)
    return page is not None and page.key == key
