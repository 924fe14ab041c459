"""Steps over sequences some of whose pages have no block, made by hand: a pool, tiers and a staging window in memory.

``World.batch()`` is the step with every page resident. ``page_out`` moves pages away, and what their blocks held is
overwritten; the answers must have the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvpager.attention.backend import AttentionBackend, LayerOptions
from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.step import StepBatch, Touched
from kvpager.errors import TierError
from kvpager.memory.arena import HostArena
from kvpager.memory.layout import KVLayout
from kvpager.tiers.quantized import TokenPlaces
from kvpager.tiers.rows import FLOAT_DTYPE, LayerRows
from kvpager.tiers.staging import NoPace, PartRequest, Staged
from kvpager.types import TierKind


class CountingPace(NoPace):
    is_shared = True

    def __init__(self) -> None:
        self.breaths = 0

    def breathe(self) -> None:
        self.breaths += 1


class FakeWindow:
    """Reads from ``pages[tier, slot]``; what was handed out is overwritten as soon as the contract allows.

    ``broken``: (tier, slot, layer index) that can't be read. ``streams``: the requests each stream was asked for.
    """

    num_bytes = 1 << 30

    def __init__(self) -> None:
        self.pages: dict[tuple[TierKind, int], np.ndarray] = {}
        self.broken: set[tuple[TierKind, int, int]] = set()
        self.pace = CountingPace()
        self.streams: list[FakeStream] = []
        self.fetched: list[PartRequest] = []
        self._rows = np.empty((0, 0), np.uint8)

    def stream(self, requests: Iterator[PartRequest]) -> "FakeStream":
        self.streams.append(FakeStream(self, requests))
        return self.streams[-1]

    def fetch(self, request: PartRequest) -> Staged:
        self.fetched.append(request)
        self._rows[:] = 0xFF
        self._rows, staged = self.read(request)
        return staged

    def read(self, request: PartRequest) -> tuple[np.ndarray, Staged]:
        rows = np.empty((len(request.slots), request.size), np.uint8)
        errors = {}
        for at, slot in enumerate(request.slots.tolist()):
            rows[at] = self.pages[request.tier, slot][request.start : request.start + request.size]
            if (request.tier, slot, request.layer_index) in self.broken:
                rows[at] = 0xFF
                errors[at] = TierError(f"slot {slot} can't be read")
        addresses = rows.ctypes.data + request.size * np.arange(len(rows))
        return rows, Staged(addresses, errors, stalled=0.5, num_bytes=rows.size)


class FakeStream:
    def __init__(self, window: FakeWindow, requests: Iterator[PartRequest]) -> None:
        self._window = window
        self._requests = iter(requests)
        self._ahead: list[PartRequest] = []
        self._rows = np.empty((0, 0), np.uint8)
        self.served: list[PartRequest] = []
        self.is_open = False

    def next(self) -> Staged:
        assert self.is_open
        while len(self._ahead) < 3 and (request := next(self._requests, None)) is not None:
            self._ahead.append(request)
        self._rows[:] = 0xFF
        self.served.append(self._ahead.pop(0))
        self._rows, staged = self._window.read(self.served[-1])
        return staged

    @property
    def is_exhausted(self) -> bool:
        return not self._ahead and next(self._requests, None) is None

    def __enter__(self) -> "FakeStream":
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._rows[:] = 0xFF
        self.is_open = False


@dataclass
class World:
    """``lengths[i]`` tokens of sequence i in all, the last ``queries[i]`` of which are new."""

    layout: KVLayout
    lengths: list[int]
    queries: list[int]
    query_heads: int
    options: LayerOptions = field(default_factory=LayerOptions)
    states: tuple[Any, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        layout = self.layout
        rng = np.random.default_rng(self.seed)
        self.window = FakeWindow()
        self.has_window = True
        self.non_resident: dict[tuple[int, int], NonResidentPages] = {}
        self._in_place: list[np.ndarray] = []
        pages = [layout.num_pages(length) for length in self.lengths]
        self.arena = HostArena(sum(pages) * layout.num_groups + 3, layout.block_stride)
        self.arena.blocks[:] = 0xFF
        ids = rng.permutation(self.arena.num_blocks).astype(np.int32)
        self.tables = []
        for _ in range(layout.num_groups):
            cuts = np.split(ids[: sum(pages)], np.cumsum(pages)[:-1])
            self.tables.append([cut.copy() for cut in cuts])
            ids = ids[sum(pages) :]
        generator = torch.Generator().manual_seed(self.seed)
        self.rows = [
            [self._random(generator, length, layer) for length in self.lengths] for layer in range(layout.layers)
        ]
        for layer in range(layout.layers):
            group = layout.places[layer].group
            for s, length in enumerate(self.lengths):
                at = np.arange(length - self.queries[s])
                blocks = self.tables[group][s][at // layout.page_size]
                places = TokenPlaces.of(blocks, at % layout.page_size, "cpu")
                k, v = self.rows[layer][s]
                LayerRows.of(self.arena, layout, layer).write(places, k[: len(at)], v[: len(at)])
        self.q = [self._random_queries(generator, layer) for layer in range(layout.layers)]

    def _random(self, generator: torch.Generator, count: int, layer: int) -> tuple[Tensor, Tensor]:
        group = self.layout.groups[self.layout.places[layer].group]
        both = torch.randn(2, count, group.kv_heads, group.head_dim, generator=generator)
        both = both.to(FLOAT_DTYPE.get(self.layout.dtype, torch.float32))
        return both[0], both[1]

    def _random_queries(self, generator: torch.Generator, layer: int) -> Tensor:
        group = self.layout.groups[self.layout.places[layer].group]
        q = torch.randn(sum(self.queries), self.query_heads, group.head_dim, generator=generator)
        return q.to(FLOAT_DTYPE.get(self.layout.dtype, torch.float32))

    def offset(self, s: int) -> int:
        """Of its first new token in the packed batch."""
        return sum(self.queries[:s])

    def full_pages(self, s: int) -> np.ndarray:
        """Those that a step does not write: they may be paged out."""
        return np.arange((self.lengths[s] - self.queries[s]) // self.layout.page_size)

    def page_out(self, s: int, group: int, pages: np.ndarray, tier: TierKind, in_place: bool = False) -> None:
        table = self.tables[group][s]
        rest = self.non_resident.get((group, s))
        if rest is None:
            layers = len(self.layout.groups[group].layers)
            count = len(table)
            rest = NonResidentPages(
                np.zeros(count, np.uint8),
                np.zeros(count, np.int32),
                np.zeros(count, np.int64),
                np.zeros((count, layers), np.uint64),
                np.zeros(count, bool),
            )
            self.non_resident[group, s] = rest
        for page in pages.tolist():
            content = self.arena.blocks[table[page]].copy()
            slot = 7 * len(self.window.pages) + 1
            self.window.pages[tier, slot] = content
            rest.tier[page], rest.slot[page] = tier, slot
            if in_place:
                self._in_place.append(content)
                rest.address[page] = content.ctypes.data
            self.arena.blocks[table[page]] = 0xFF
            table[page] = -1

    def give_back(self, s: int, group: int, pages: np.ndarray) -> None:
        """For good."""
        self.arena.blocks[self.tables[group][s][pages]] = 0xFF
        self.tables[group][s][pages] = -1

    def batch(self) -> StepBatch:
        starts = np.array(self.lengths, np.int64) - self.queries
        tables = tuple(tuple(group) for group in self.tables)
        tails = np.array([[table[-1] for table in group] for group in self.tables], np.int32)
        batch = StepBatch(
            self.layout, 100 + np.arange(len(starts)), starts, np.array(self.queries, np.int64), tables, tails
        )
        if not self.non_resident:
            return replace(batch, states=self.states)
        return replace(
            batch,
            states=self.states,
            non_resident=self.non_resident,
            window=self.window if self.has_window else None,
            touched=Touched.none(len(starts)),
        )

    def run(self, backend: AttentionBackend, layers: list[int] | None = None) -> list[Tensor]:
        """The outputs of ``layers`` (default: all, in order), in order of layers."""
        self.step = self.batch()
        plan = backend.plan(self.step, self.arena)
        found = {}
        for layer in range(self.layout.layers) if layers is None else layers:
            cut = [
                [rows[half][len(rows[half]) - count :] for half in range(2)]
                for rows, count in zip(self.rows[layer], self.queries, strict=True)
            ]
            k, v = (torch.cat([each[half] for each in cut]) for half in range(2))
            found[layer] = plan.run(layer, self.q[layer], k, v, self.options)
        return [found[layer] for layer in sorted(found)]
