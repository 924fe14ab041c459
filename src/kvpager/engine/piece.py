"""Tokens of some running branches that one forward pass computes: what it is given, and where tokens will be chosen."""

from array import array
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from kvpager.cache.sequence import Sequence
from kvpager.engine.request import Branch


@dataclass(frozen=True, slots=True)
class Piece:
    """B branches with T new tokens in all. ``due``: the branches that know no more than what is computed then, so that
    their next token is chosen. ``num_prefill``: new tokens of branches that have more than one to compute."""

    branches: tuple[Branch, ...]
    sequences: tuple[Sequence, ...]
    counts: np.ndarray  # [B] new tokens
    tokens: "array[int]"  # [T]
    due: tuple[int, ...]
    sample_at: np.ndarray  # [len(due)] index of their last token among the T
    num_prefill: int

    @classmethod
    def of(cls, work: "List[tuple[Branch, int]]") -> "Piece":
        branches = tuple(branch for branch, _ in work)
        sequences = tuple(branch.running_sequence for branch in branches)
        counts = np.array([count for _, count in work], np.int64)
        due = [at for at, (branch, count) in enumerate(work) if sequences[at].length + count == branch.num_known]
        prefill = (
            count for (branch, count), seq in zip(work, sequences, strict=True) if branch.num_known - seq.length > 1
        )
        ends = np.cumsum(counts) - 1
        return cls(branches, sequences, counts, _new_tokens(sequences, counts), tuple(due), ends[due], sum(prefill))

    @property
    def num_tokens(self) -> int:
        return int(self.counts.sum())


def _new_tokens(sequences: List[Sequence], counts: np.ndarray) -> "array[int]":
    tokens = array("i")
    for seq, count in zip(sequences, counts.tolist(), strict=True):
        assert seq.tokens is not None
        start = seq.length
        tokens.extend(seq.tokens[start : start + count])
    return tokens
