"""STAMP: the K and V rows of position p in layer l are SHA-256( l | "K" or "V" | t0 .. tp ), repeated as a pattern.

A row names everything it may depend on, so a wrong, stale or mixed block shows as soon as its bytes are read. Rows are
compared as bytes: many patterns are NaN as numbers, and NaN is never equal to itself.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvpager import KVLayout, PagedCache
from kvpager.cache.sequence import Sequence as KVSequence
from kvpager.cache.step import Step
from kvpager.tiers.rows import TORCH_DTYPE, layer_view

Tokens = Sequence[int]


def T(first: int, last: int) -> list[int]:  # noqa: N802  # the name the open cases use
    """The token ids first, first+1, ... last."""
    return list(range(first, last + 1))


@dataclass(frozen=True)
class Mismatch:
    """The first row that does not hold what it should."""

    layer: int
    half: str
    position: int

    def __str__(self) -> str:
        return f"{self.half} of layer {self.layer} at position {self.position} holds other bytes"


class Stamp:
    """Writes and compares the rows of one cache. Tokens are given, so that hand-written sequences work as well."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self.layout: KVLayout = cache.layout

    def row(self, layer: int, half: str, tokens: Tokens) -> bytes:
        """One row, after ``tokens`` up to and including its own."""
        return self._rows(layer, half, tokens, len(tokens) - 1, len(tokens)).tobytes()

    def rows(self, layer: int, half: str, tokens: Tokens, start: int, stop: int) -> Tensor:
        """[stop-start, kv_heads, head_dim] in the cache's dtype."""
        group = self.layout.groups[self.layout.places[layer].group]
        raw = torch.from_numpy(self._rows(layer, half, tokens, start, stop))
        return raw.view(TORCH_DTYPE[self.layout.dtype]).view(stop - start, group.kv_heads, group.head_dim)

    def kv(self, tokens: Tokens, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """K and V as ``seq.write`` takes them: [layers, stop-start, kv_heads, head_dim]."""
        layers = range(self.layout.layers)
        k = torch.stack([self.rows(layer, "K", tokens, start, stop) for layer in layers])
        v = torch.stack([self.rows(layer, "V", tokens, start, stop) for layer in layers])
        return k, v

    def write(self, seq: KVSequence, tokens: Tokens | None = None) -> None:
        """Writes what the sequence does not have yet, up to the end of its token ids (or of ``tokens``)."""
        tokens = seq.tokens if tokens is None else tokens
        assert tokens is not None
        if seq.length < len(tokens):
            seq.write(seq.length, *self.kv(tokens, seq.length, len(tokens)))

    def fill(self, step: Step, tokens: Iterable[Tokens] | None = None) -> None:
        """Writes the new rows of an open step straight into its blocks, as a kernel does."""
        batch = step.batch
        known = [seq.tokens for seq in step.sequences] if tokens is None else list(tokens)
        slots = torch.from_numpy(batch.positions() % self.layout.page_size)
        for layer, place in enumerate(self.layout.places):
            blocks = torch.from_numpy(batch.token_blocks(place.group).astype(np.int64))
            view = layer_view(self.cache.arena, self.layout, layer)
            for number, half in enumerate("KV"):
                spans = zip(known, batch.starts.tolist(), batch.stops.tolist(), strict=True)
                rows = torch.cat([self.rows(layer, half, ids, start, stop) for ids, start, stop in spans])
                view[blocks, :, number, slots] = rows

    def mismatch(self, seq: KVSequence, tokens: Tokens | None = None) -> Mismatch | None:
        """Compares every row a sequence may read: those of pages that no window has given back."""
        tokens = seq.tokens if tokens is None else tokens
        assert tokens is not None
        for layer, place in enumerate(self.layout.places):
            start = int(self.cache.rows.first_page[place.group, seq.row]) * self.layout.page_size
            positions = np.arange(start, seq.length)
            if len(positions) == 0:
                continue
            table = seq.tables[place.group].snapshot()
            found = self._read(layer, table[positions // self.layout.page_size], positions % self.layout.page_size)
            for half in "KV":
                expected = self._rows(layer, half, tokens, start, seq.length)
                wrong = np.flatnonzero((found[half] != expected).any(axis=1))
                if len(wrong):
                    return Mismatch(layer, half, start + int(wrong[0]))
        return None

    def verify(self, seq: KVSequence, tokens: Tokens | None = None) -> None:
        mismatch = self.mismatch(seq, tokens)
        assert mismatch is None, str(mismatch)

    def _read(self, layer: int, blocks: np.ndarray, slots: np.ndarray) -> dict[str, np.ndarray]:
        view = layer_view(self.cache.arena, self.layout, layer)
        where, slot = torch.from_numpy(blocks.astype(np.int64)), torch.from_numpy(slots.astype(np.int64))
        return {half: as_bytes(view[where, :, number, slot]) for number, half in enumerate("KV")}

    def _rows(self, layer: int, half: str, tokens: Tokens, start: int, stop: int) -> np.ndarray:
        """uint8 [stop-start, bytes of a row]."""
        group = self.layout.groups[self.layout.places[layer].group]
        width = group.kv_heads * group.head_dim * self.layout.item_bytes
        state = hashlib.sha256(f"{layer}|{half}|".encode())
        out = np.empty((stop - start, width), np.uint8)
        for position in range(stop):
            state.update(int(tokens[position]).to_bytes(4, "little"))
            if position >= start:
                pattern = state.copy().digest() * (-(-width // 32))
                out[position - start] = np.frombuffer(pattern[:width], np.uint8)
        return out


def as_bytes(rows: Tensor) -> np.ndarray:
    """[rows, bytes of a row], whatever the dtype."""
    return rows.contiguous().view(len(rows), -1).view(torch.uint8).numpy()


def run_step(stamp: Stamp, sequences: Iterable[KVSequence]) -> None:
    """One step over all tokens that the sequences have ids for; its rows are written as a kernel would."""
    counts = {seq: seq.num_tokens - seq.length for seq in sequences}
    with stamp.cache.step(counts) as step:
        stamp.fill(step)


def prefill(stamp: Stamp, tokens: Tokens, **options: object) -> KVSequence:
    """A sequence whose prompt is computed: prefix hits are adopted, the rest is stamped in one step."""
    seq = stamp.cache.sequence(tokens, **options)  # type: ignore[arg-type]
    run_step(stamp, [seq])
    return seq


def block_bytes(cache: PagedCache, block: int) -> bytes:
    """Everything that one block of a CPU pool holds."""
    return bytes(cache.arena.blocks[block].tobytes())  # type: ignore[attr-defined]


def block_counts(cache: PagedCache) -> dict[str, int]:
    """free, used, cached, moving; checks that they add up, and every other book of the cache."""
    cache.check()
    counts = cache.pool.counts()
    named = {"free": counts.free, "used": counts.used, "cached": counts.cached, "moving": counts.moving}
    assert min(named.values()) >= 0
    assert sum(named.values()) == counts.total
    return named
