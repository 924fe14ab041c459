"""Tokens of some running branches that one forward pass computes: what it is given, and where logits are wanted."""

from array import array
from collections.abc import Sequence as List
from dataclasses import dataclass

import numpy as np

from kvpager.cache.sequence import Sequence
from kvpager.engine.request import Branch


@dataclass(frozen=True, slots=True)
class Scored:
    """``rows`` of the logits are those of the next positions that a prompt's scores want. ``at``: which branch."""

    at: int
    rows: slice


@dataclass(frozen=True, slots=True)
class Piece:
    """B branches with T new tokens in all. ``due``: the branches that know no more than what is computed then, so that
    their next token is chosen: the first rows of the logits, in this order. Those that are ``scored`` come behind.
    ``num_prefill``: new tokens of branches that have more than one to compute."""

    branches: tuple[Branch, ...]
    sequences: tuple[Sequence, ...]
    counts: np.ndarray  # [B] new tokens
    tokens: "array[int]"  # [T]
    due: tuple[int, ...]
    logits_at: np.ndarray  # [rows] index among the T of the tokens whose logits are wanted
    num_prefill: int
    scored: tuple[Scored, ...] = ()

    @classmethod
    def of(cls, work: "List[tuple[Branch, int]]") -> "Piece":
        branches = tuple(branch for branch, _ in work)
        sequences = tuple(branch.running_sequence for branch in branches)
        counts = np.array([count for _, count in work], np.int64)
        due = [at for at, (branch, count) in enumerate(work) if sequences[at].length + count == branch.num_known]
        prefill = (
            count for (branch, count), seq in zip(work, sequences, strict=True) if branch.num_known - seq.length > 1
        )
        stops = np.cumsum(counts)
        logits_at, scored = [stops[due] - 1], []
        num_rows = len(due)
        for at, (branch, count) in enumerate(work):
            if branch.request.scores is None or not branch.is_scored:
                continue
            start = sequences[at].length
            wanted = branch.request.scores.wanted(start, start + count)
            logits_at.append(np.array(wanted, np.int64) + (stops[at] - count - start))
            scored.append(Scored(at, slice(num_rows, num_rows + len(wanted))))
            num_rows += len(wanted)
        return cls(
            branches,
            sequences,
            counts,
            _new_tokens(sequences, counts),
            tuple(due),
            np.concatenate(logits_at),
            sum(prefill),
            tuple(scored),
        )

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
