"""One forward pass over some sequences: what it computes and reads, frozen. The cache opens and closes it.

    sequence A   [ computed ........ | new ]        starts = 7, query length 2
    sequence B   [ computed | new new new ]         the new tokens of all sequences lie one after the other (packed):
                                                    token t of the batch belongs to sequence ``owner[t]``

The tables in a batch are snapshots: no matter what happens to the sequences while the step is open (append, free,
fork), it reads what it was given, and none of its blocks is given out again before it has ended.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np

from kvpager.cache.attention_state import AttentionState
from kvpager.cache.non_resident import NonResidentPages
from kvpager.cache.sequence import Sequence
from kvpager.memory.layout import KVLayout
from kvpager.tiers.staging import Window


@dataclass(frozen=True, slots=True)
class Touched:
    """Per sequence of a step [S], added to by whoever reads non-resident pages: parts read, bytes, seconds waited."""

    parts: np.ndarray
    bytes: np.ndarray
    seconds: np.ndarray

    @classmethod
    def none(cls, num_sequences: int) -> "Touched":
        return cls(np.zeros(num_sequences, np.int64), np.zeros(num_sequences, np.int64), np.zeros(num_sequences))


@dataclass(frozen=True, slots=True)
class StepBatch:
    """S sequences with T new tokens in all. ``tables[g][s]``: int32 blocks of sequence s in layer group g, by page.

    An entry below 0 has no block: the page is non-resident (``non_resident[g, s]`` says where it lies), or was given
    back for good: by a window, or by in-request eviction.
    """

    layout: KVLayout
    rows: np.ndarray  # [S] rows of the sequences
    starts: np.ndarray  # [S] position of the first new token
    query_lengths: np.ndarray  # [S] new tokens
    tables: tuple[tuple[np.ndarray, ...], ...]
    tails: np.ndarray  # [groups, S] block of the last new token
    states: tuple[AttentionState | None, ...] = ()  # [S]; () where no sequence has any
    non_resident: Mapping[tuple[int, int], NonResidentPages] = field(default_factory=dict)  # by (group, s)
    window: Window | None = None  # through which those are read
    touched: "Touched | None" = None  # what reading them took; None where there are none

    @property
    def num_sequences(self) -> int:
        return len(self.starts)

    @property
    def num_tokens(self) -> int:
        return int(self.query_lengths.sum())

    @property
    def stops(self) -> np.ndarray:
        """[S] sequence length with the new tokens."""
        return self.starts + self.query_lengths

    def offsets(self) -> np.ndarray:
        """[S+1] where each sequence's tokens begin in the packed batch."""
        return np.concatenate([[0], np.cumsum(self.query_lengths)])

    def positions(self) -> np.ndarray:
        """[T] position of each new token in its sequence."""
        offsets = self.offsets()
        shift = np.repeat(self.starts - offsets[:-1], self.query_lengths)
        return np.arange(offsets[-1]) + shift

    def token_blocks(self, group: int) -> np.ndarray:
        """[T] the block of ``group`` each new token is written to; its slot is ``positions() % page_size``."""
        if (self.query_lengths == 1).all():
            return self.tails[group]
        page_size = self.layout.page_size
        blocks = []
        for table, start, stop in zip(self.tables[group], self.starts.tolist(), self.stops.tolist(), strict=True):
            blocks.append(table[np.arange(start, stop) // page_size])
        return np.concatenate(blocks)


@dataclass(slots=True)
class Step:
    """A context: entering resolved all faults; leaving it commits the new tokens, or takes them back if it raised."""

    sequences: tuple[Sequence, ...]
    batch: StepBatch
    close: Callable[["Step", bool], None]
    held: list[np.ndarray] = field(default_factory=list)  # blocks freed meanwhile, pinned until the step has ended
    is_open: bool = True
    has_succeeded: bool = False  # known once it is left

    def __enter__(self) -> "Step":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_open:
            self.close(self, kind is None)
