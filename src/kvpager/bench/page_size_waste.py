"""What page sizes cost in memory and bookkeeping: unused slots of last pages, page tables, and the books of a step.

Lengths are those of Azure's conversation trace, all made longer or shorter alike so that their median is the context:
with one length for all, waste would be a matter of its remainder. Knows no attention and no torch.
"""

import statistics
import time

import numpy as np

from kvpager.assemble import open_cache
from kvpager.bench.interleaved import measure_in_turn
from kvpager.bench.workload_lengths import azure_lengths
from kvpager.errors import InvariantError
from kvpager.memory.layout import KVLayout

_RUNNING = 128  # sequences of a step


def lengths_around(context: int) -> np.ndarray:
    """int64: tokens of requests whose median is ``context``."""
    lengths = np.array([prompt + answer for prompt, answer in azure_lengths()], np.float64)
    scaled: np.ndarray = np.maximum(1, lengths * context / np.median(lengths)).astype(np.int64)
    return scaled


def waste(context: int, page_size: int) -> float:
    """The share of slots in pages that hold no token, over all requests."""
    lengths = lengths_around(context)
    slots = -(-lengths // page_size) * page_size
    return float(1 - lengths.sum() / slots.sum())


def table_bytes(context: int, page_size: int) -> int:
    """Of one sequence's page table, as the cache counts it."""
    with open_cache(_layout(page_size), num_blocks=-(-context // page_size)) as cache:
        seq = cache.sequence()
        with cache.step({seq: context}):
            pass
        return cache.statistics().table_bytes


def bookkeeping_microseconds(page_sizes: tuple[int, ...], steps: int, context: int = 512) -> dict[int, float]:
    """By page size: a sequence's share of opening and closing a decode step, new pages and their keys included. A step
    in which pages fill costs more, so ``steps`` of each are timed together: a multiple of the largest page size."""

    def measured(page_size: int) -> float:
        with open_cache(_layout(page_size), num_blocks=_RUNNING * (-(-(context + steps) // page_size) + 1)) as cache:
            sequences = [cache.sequence([salt, *range(1, context)]) for salt in range(_RUNNING)]
            with cache.step(dict.fromkeys(sequences, context)):
                pass
            ones = np.ones(_RUNNING, np.int64)
            begin = time.perf_counter()
            for token in range(steps):
                for seq in sequences:
                    seq.append(token)
                with cache.step_over(sequences, ones):
                    pass
            seconds = time.perf_counter() - begin
            if any(seq.length != context + steps for seq in sequences):
                raise InvariantError("a decode step lost a token")
            return seconds / steps / _RUNNING

    times = measure_in_turn([lambda size=size: measured(size) for size in page_sizes], 0.0, 3)  # type: ignore[misc]
    return {size: 1e6 * statistics.median(times.seconds[at]) for at, size in enumerate(page_sizes)}


def _layout(page_size: int) -> KVLayout:
    return KVLayout(layers=1, kv_heads=1, head_dim=8, dtype="bfloat16", page_size=page_size)
