"""A cache and the simplest model of it, driven side by side by arbitrary choices.

The model is a list of rows per sequence: one 64-bit number per position and layer that K and V must hold. Rows of a
sequence with token ids are a hash of scope, weights and all tokens up to there, so any page that is wrong, stale or
another's shows by its bytes. Prompts come from an alphabet of two, so that prefixes collide all the time.

Steps write when they are *left*, into the blocks they were given when they were opened: as late as a kernel may. What
a step may read is compared then, too.

After every operation all books of the cache are checked.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from kvpager import ConfigError, KVLayout, LayerSpec, OutOfBlocks, Scope, Watermarks, open_cache
from kvpager.cache.sequence import Sequence
from kvpager.cache.step import Step
from kvpager.eviction.lru import LRU
from kvpager.types import FaultKind

Integer = Callable[[int, int], int]  # chooses a whole number between two, both included
_MASK = 2**64 - 1
_RUBBISH = 0x7FF8_DEAD_7FC0_BEEF
_MAX_LENGTH = 40


def _layout(*windows: int | None, page_size: int) -> KVLayout:
    """One layer per window; a row is 8 bytes."""
    return KVLayout.mixed([LayerSpec(1, 2, window) for window in windows], dtype="float32", page_size=page_size)


class YoungestFirst(LRU):
    """The worst order there is: what was used last goes first. The cache must keep prefixes whole all the same."""

    name = "youngest first"

    def offer(self, blocks: np.ndarray) -> None:
        for block in blocks.tolist():
            self._leaves.offer(block, -self._rank[block])


@dataclass(frozen=True)
class Setting:
    """``weights``: operations chosen more or less often than usual."""

    layout: KVLayout
    num_blocks: int
    options: dict[str, object] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    policy: type[LRU] = LRU

    def operations(self, generator: random.Random, count: int) -> list[str]:
        weights = {**OPERATIONS, **self.weights}
        return generator.choices(list(weights), list(weights.values()), k=count)


OPERATIONS = {  # how often each is chosen
    "open_sequence": 8,
    "open_sequence_by_hand": 1,
    "append": 8,
    "step": 10,
    "leave_step": 16,
    "fork": 4,
    "truncate": 3,
    "free": 6,
    "write_by_hand": 3,
    "resize": 1,
    "clear_prefix": 1,
}
_BY_HAND = {"open_sequence_by_hand": 8, "open_sequence": 4, "write_by_hand": 8, "leave_step": 8, "fork": 10, "free": 8}


SETTINGS = {
    "full": Setting(_layout(None, page_size=4), 14),
    "full, whole pages": Setting(_layout(None, page_size=2), 20, {"match_inside_pages": False}),
    "page of one": Setting(_layout(None, page_size=1), 24),
    "window": Setting(_layout(5, page_size=2), 12),
    "window below a page": Setting(_layout(2, page_size=4), 10, {"rewind": 3}),
    "full and window": Setting(_layout(None, 5, page_size=2), 24, {"rewind": 2}),
    "two windows": Setting(_layout(3, 9, page_size=2), 22, {"watermarks": Watermarks(1, 4, 7)}),
    "by hand": Setting(_layout(None, None, page_size=4), 16, {"prefix_cache": False}, weights=_BY_HAND),
    "youngest first": Setting(_layout(None, page_size=2), 16, policy=YoungestFirst),
}


@dataclass(eq=False)
class Model:
    """What a sequence must be. ``rows`` holds its committed positions; ``tokens`` is None for one written by hand."""

    seq: Sequence
    salt: str
    weights: int
    tokens: list[int] | None
    rows: list[int]
    reserved: int
    steps: list["OpenStep"] = field(default_factory=list)
    is_freed: bool = False


@dataclass(eq=False)
class OpenStep:
    step: Step
    members: list[Model]
    new_rows: list[list[int]]
    readable: list[list[int]]  # the committed rows of each member when the step was opened
    tables: list[list[np.ndarray]]  # [group][member] what the step was given
    is_left: bool = False
    has_succeeded: bool = False


class World:
    """``happened`` counts what a run has met, so that a test can tell that it met it."""

    def __init__(self, setting: Setting) -> None:
        self.layout = setting.layout
        self.page_size = setting.layout.page_size
        options = {"max_capacity": 40 * setting.layout.block_stride, "debug": True, **setting.options}
        self.cache = open_cache(setting.layout, num_blocks=setting.num_blocks, **options)  # type: ignore[arg-type]
        self.cache.evictable.policy = setting.policy(setting.num_blocks)
        self.models: list[Model] = []
        self.open_steps: list[OpenStep] = []
        self.happened: Counter[str] = Counter()
        self.weights = 0
        self.written_by_hand = 0
        self.touched: list[Model] = []
        self.turns = 0
        constants = np.random.default_rng(7).integers(1, 2**63, (setting.layout.layers, 2), np.uint64)
        self._constants = constants | np.uint64(1)  # odd: multiplying by it maps different rows to different bytes

    # -- rows ---------------------------------------------------------------------------------------------------

    def _hash_rows(self, model: Model, start: int, stop: int) -> list[int]:
        """The rows of positions start .. stop-1 of a sequence with ids; the ones before it are not looked at."""
        assert model.tokens is not None
        state = hash((model.salt, model.weights)) & _MASK  # one process: any hash will do
        rows = []
        for position, token in enumerate(model.tokens[:stop]):
            state = ((state ^ token) * 0x9E3779B97F4A7C15 + 0x2545F491) & _MASK
            state ^= state >> 29
            if position >= start:
                rows.append(state)
        return rows

    def _rows_by_hand(self, count: int) -> list[int]:
        self.written_by_hand += count
        return [(self.written_by_hand - i) * 0xD1342543DE82EF95 & _MASK for i in range(count)]

    def _words(self, group: int) -> np.ndarray:
        """[blocks, layers of the group, 2 (K, V), page_size] of 64-bit rows."""
        layers = len(self.layout.groups[group].layers)
        words = self.cache.arena.blocks.view(np.uint64)  # type: ignore[attr-defined]
        return words[:, : layers * 2 * self.page_size].reshape(len(words), layers, 2, self.page_size)

    def _expected(self, layer: int, half: int, rows: np.ndarray) -> np.ndarray:
        return rows * self._constants[layer, half]

    def _compare(self, tables: list[np.ndarray], first: list[int], rows: list[int], what: str) -> None:
        """``rows`` are those of positions 0 on; ``first[g]`` is the first position group g still has."""
        for layer, place in enumerate(self.layout.places):
            start = first[place.group]
            if start >= len(rows):
                continue
            expected = np.array(rows[start:], np.uint64)
            positions = np.arange(start, len(rows))
            blocks = tables[place.group][positions // self.page_size]
            found = self._words(place.group)[blocks, place.index, :, positions % self.page_size]
            for half in range(2):
                wrong = found[:, half] != self._expected(layer, half, expected)
                assert not wrong.any(), f"{what}: {'KV'[half]} of layer {layer} is wrong from position " + str(
                    start + int(np.argmax(wrong))
                )

    def verify(self, model: Model) -> None:
        seq = model.seq
        assert seq.length == len(model.rows), f"length {seq.length}, expected {len(model.rows)}"
        tables = [table.snapshot() for table in seq.tables]
        first = (self.cache.rows.first_page[:, seq.row] * self.page_size).tolist()
        self._compare(tables, first, model.rows, "a sequence")
        for group, window in enumerate(group.window for group in self.layout.groups):
            needed = 0 if window is None else max(0, len(model.rows) - window + 1)
            assert first[group] <= needed, f"group {group} gave back what the next token sees"

    def verify_all(self) -> None:
        for model in self.models:
            self.verify(model)

    # -- after every operation ----------------------------------------------------------------------------------

    def run(self, name: str, integer: Integer) -> None:
        """One operation, and all checks."""
        self.turns += 1
        self.touched.clear()
        getattr(self, name)(integer)
        self.cache.check()
        counts = self.cache.pool.counts()
        assert counts.free + counts.used + counts.cached + counts.moving == counts.total
        assert (counts.moving == 0 and counts.pinned == 0) or self.open_steps
        if self.turns % 16 == 0:
            self.verify_all()
        else:
            for model in self.touched:
                if not model.is_freed:
                    self.verify(model)

    def finish(self) -> None:
        """Everything goes; then every block can be had."""
        while self.open_steps:
            self.run("leave_step", lambda low, high: low)
        self.cache.free([model.seq for model in self.models])
        self.cache.check()
        counts = self.cache.statistics().blocks
        assert counts.used == counts.moving == 0
        assert counts.cached == self.cache.index.num_entries
        last = self.cache.sequence()
        with self.cache.step({last: self.page_size * (counts.total // self.layout.num_groups)}):
            self.cache.check()
        last.free()
        self.cache.clear_prefix()
        assert self.cache.index.num_nodes == 0
        assert self.cache.statistics().blocks.free == counts.total
        self.cache.check()
        stats = self.cache.statistics()
        self.happened["copies"] += stats.faults[FaultKind.COPY_ON_WRITE].pages
        self.happened["hits"] += stats.prefix.hit_tokens
        self.happened["reclaimed"] += stats.reclaim.direct + stats.reclaim.background
        self.happened["deduplicated"] += stats.deduplicated_blocks
        self.cache.close()

    # -- choosing -----------------------------------------------------------------------------------------------

    def _pick(self, integer: Integer, models: list[Model]) -> Model | None:
        return models[integer(0, len(models) - 1)] if models else None

    def _idle(self) -> list[Model]:
        return [model for model in self.models if not model.steps]

    def _tokens(self, integer: Integer, most: int) -> list[int]:
        bits = integer(0, 255)
        return [1 + (bits >> i & 1) for i in range(integer(1, most))]

    # -- operations ---------------------------------------------------------------------------------------------

    def open_sequence(self, integer: Integer) -> None:
        if len(self.models) >= 7:
            return
        tokens = self._tokens(integer, 8)
        salt = "x" if integer(0, 5) == 0 else ""
        scope = Scope(salt=salt)
        max_prefix = integer(0, 12) if integer(0, 7) == 0 else None
        publish_until = integer(0, 6) if integer(0, 7) == 0 else None
        found = self.cache.lookup(tokens, scope).num_tokens
        seq = self.cache.sequence(tokens, scope=scope, max_prefix=max_prefix, publish_until=publish_until)
        assert seq.prefix_tokens <= len(tokens) - 1
        assert seq.prefix_tokens == found if max_prefix is None else seq.prefix_tokens <= max_prefix
        model = Model(seq, salt, self.weights, tokens, [], seq.prefix_tokens)
        model.rows = self._hash_rows(model, 0, seq.prefix_tokens)
        self.models.append(model)
        self.touched.append(model)
        if integer(0, 3):
            self._open_step([model], [len(tokens) - seq.prefix_tokens])

    def open_sequence_by_hand(self, integer: Integer) -> None:
        if len(self.models) < 7:
            self.models.append(Model(self.cache.sequence(), "", 0, None, [], 0))

    def append(self, integer: Integer) -> None:
        model = self._pick(integer, [model for model in self.models if model.tokens is not None])
        if model is not None and model.tokens is not None and len(model.tokens) < _MAX_LENGTH:
            tokens = self._tokens(integer, 5)
            model.seq.append(tokens)
            model.tokens += tokens

    def step(self, integer: Integer) -> None:
        """Opens a step over up to three sequences, mostly with all the tokens they have to compute."""
        ready = [model for model in self.models if self._pending(model)]
        members, counts = [], []
        for _ in range(integer(1, 3)):
            model = self._pick(integer, [model for model in ready if model not in members])
            if model is not None:
                pending = self._pending(model)
                members.append(model)
                counts.append(pending if integer(0, 2) else integer(1, pending))
        if members and len(self.open_steps) < 3:
            self._open_step(members, counts)

    def _pending(self, model: Model) -> int:
        if model.tokens is None:
            return 5 if model.reserved < _MAX_LENGTH else 0
        return len(model.tokens) - model.reserved

    def _open_step(self, members: list[Model], counts: list[int]) -> None:
        before = self.cache.pool.counts()
        try:
            step = self.cache.step({model.seq: count for model, count in zip(members, counts, strict=True)})
        except OutOfBlocks as error:
            assert self.cache.pool.counts() == before, "a refused step changed the pool"
            self._check_need(error)
            return
        pages = [self.layout.num_pages(stop) for stop in step.batch.stops.tolist()]
        tables = [[table[:n].copy() for table, n in zip(group, pages, strict=True)] for group in step.batch.tables]
        opened = OpenStep(step, members, [], [list(model.rows) for model in members], tables)
        for model, count in zip(members, counts, strict=True):
            start, stop = model.reserved, model.reserved + count
            by_hand = model.tokens is None
            opened.new_rows.append(self._rows_by_hand(count) if by_hand else self._hash_rows(model, start, stop))
            model.reserved = stop
            model.steps.append(opened)
        assert step.batch.starts.tolist() == [model.reserved - n for model, n in zip(members, counts, strict=True)]
        self.open_steps.append(opened)
        self.happened["overlapping steps"] += len(self.open_steps) > 1

    def _check_need(self, error: OutOfBlocks) -> None:
        assert error.needed > error.free + error.reclaimable, f"refused without need: {error}"
        self.happened["out of blocks"] += 1

    def leave_step(self, integer: Integer) -> None:
        """Leaves any open step, which does its writing now; one in six fails half-way, its rows rubbish."""
        waiting = [opened for opened in self.open_steps if not opened.is_left]
        if not waiting:
            return
        opened = waiting[integer(0, len(waiting) - 1)]
        opened.has_succeeded = integer(0, 5) > 0
        self._read_as_the_step(opened)
        self._write_as_the_step(opened)
        opened.is_left = True
        if opened.has_succeeded:
            opened.step.__exit__(None, None, None)
        else:
            opened.step.__exit__(RuntimeError, RuntimeError(), None)
            self.happened["failed steps"] += 1
        self._settle()
        self.touched += opened.members

    def _read_as_the_step(self, opened: OpenStep) -> None:
        batch = opened.step.batch
        for given, now in zip(opened.tables, batch.tables, strict=True):
            for before, after in zip(given, now, strict=True):
                assert np.array_equal(before, after[: len(before)]), "the table of an open step was changed"
        for at, (rows, start) in enumerate(zip(opened.readable, batch.starts.tolist(), strict=True)):
            first = [0 if g.window is None else max(0, start - g.window + 1) for g in self.layout.groups]
            self._compare([tables[at] for tables in batch.tables], first, rows, "what an open step reads")

    def _write_as_the_step(self, opened: OpenStep) -> None:
        batch = opened.step.batch
        rows = np.array([row for rows in opened.new_rows for row in rows], np.uint64)
        slots = batch.positions() % self.page_size
        for layer, place in enumerate(self.layout.places):
            blocks = batch.token_blocks(place.group)
            for half in range(2):
                values = self._expected(layer, half, rows) if opened.has_succeeded else np.uint64(_RUBBISH)
                self._words(place.group)[blocks, place.index, half, slots] = values

    def _settle(self) -> None:
        """Steps that share a sequence count in order; after a failed one, none counts until all have ended."""
        for opened in list(self.open_steps):
            if not opened.is_left or any(model.steps[0] is not opened for model in opened.members):
                continue
            self.open_steps.remove(opened)
            batch = opened.step.batch
            for model, rows, start in zip(opened.members, opened.new_rows, batch.starts.tolist(), strict=True):
                model.steps.remove(opened)
                if opened.has_succeeded and start == len(model.rows):
                    model.rows += rows
                if not model.steps:
                    model.reserved = len(model.rows)

    def fork(self, integer: Integer) -> None:
        model = self._pick(integer, self._idle())
        if model is None or len(self.models) >= 7:
            return
        tokens = None if model.tokens is None else list(model.tokens)
        twin = Model(model.seq.fork(), model.salt, model.weights, tokens, list(model.rows), model.reserved)
        self.models.append(twin)
        self.touched += [model, twin]

    def truncate(self, integer: Integer) -> None:
        model = self._pick(integer, self._idle())
        if model is None:
            return
        length = integer(0, len(model.rows)) if integer(0, 1) else max(0, len(model.rows) - integer(0, 3))
        try:
            model.seq.truncate(length)
        except ConfigError:
            assert any(group.window is not None for group in self.layout.groups)
            self.happened["refused cuts"] += 1
        else:
            del model.rows[length:]
            model.reserved = length
            if model.tokens is not None:
                del model.tokens[length:]
        self.touched.append(model)

    def free(self, integer: Integer) -> None:
        model = self._pick(integer, self.models)
        if model is not None:
            self.happened["freed during a step"] += bool(model.steps)
            model.seq.free()
            model.is_freed = True
            self.models.remove(model)

    def write_by_hand(self, integer: Integer) -> None:
        model = self._pick(integer, self._idle())
        if model is None or len(model.rows) >= _MAX_LENGTH:
            return
        start = integer(0, len(model.rows))
        stop = start + integer(0, 6)
        if model.tokens is None:
            rows = self._rows_by_hand(stop - start)
        else:
            stop = min(stop, len(model.tokens))
            rows = self._hash_rows(model, start, stop)
        if stop <= start:
            return
        before = self.cache.pool.counts()
        try:
            model.seq.write(start, *self._tensors(rows))
        except OutOfBlocks as error:
            assert self.cache.pool.counts() == before or stop > len(model.rows), "a refused write changed the pool"
            self._check_need(error)
        except ConfigError:
            assert self.cache.pool.counts() == before
            self.happened["refused writes"] += 1
        else:
            model.rows[start:stop] = rows
            model.reserved = len(model.rows)
            self.happened["written by hand"] += 1
        self.touched.append(model)

    def _tensors(self, rows: list[int]) -> list[torch.Tensor]:
        """K and V, [layers, tokens, 1, 2] float32, whose bytes are the rows."""
        words = np.array(rows, np.uint64)
        both = []
        for half in range(2):
            layers = np.stack([self._expected(layer, half, words) for layer in range(self.layout.layers)])
            both.append(torch.from_numpy(layers.view(np.float32)).view(self.layout.layers, len(rows), 1, 2))
        return both

    def resize(self, integer: Integer) -> None:
        size = integer(6, 30)
        if self.open_steps:
            return
        before = self.cache.pool.counts()
        try:
            self.cache.resize(size)
        except OutOfBlocks:
            assert self.cache.pool.counts() == before
            assert before.used > size
        else:
            self.happened["shrunk" if size < before.total else "grown"] += 1
            self.touched += self.models

    def clear_prefix(self, integer: Integer) -> None:
        if integer(0, 3):
            return
        if integer(0, 1):
            self.cache.clear_prefix()
        else:
            self.weights += 1
            self.cache.set_fingerprint(str(self.weights).encode())
        assert self.cache.index.num_entries == 0
        assert self.cache.pool.counts().cached == 0
