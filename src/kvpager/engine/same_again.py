"""Passes in which the same branches decode as in the pass before: what they compute follows, without asking anybody.

While nobody can start, and more blocks can be had than every branch could take, ``decide`` says the same each time:
one token for each, in the same order. So the piece is the one of the pass before, less those that have ended, with the
tokens that it gave. Whatever else happens (a request comes, a branch is stopped or forked, blocks get short) is for
``decide``. Knows no queue and no model.
"""

from array import array
from collections.abc import Sequence as List
from collections.abc import Sized
from itertools import compress

import numpy as np

from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.sequence import Sequence
from kvpager.engine.block_needs import Limits
from kvpager.engine.piece import Piece
from kvpager.engine.request import Branch

_BLOCKS_EACH = 2  # that one token takes in a layer group, at most: a copy of the begun page, or a new one


class SameAgain:
    """Of one engine. ``chunk`` of the limits is None: in deterministic mode each branch has a step of its own."""

    def __init__(self, cache: PagedCache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self._last: Piece | None = None

    def computed(self, piece: Piece) -> None:
        """The only piece of its pass was computed, and each token that was due is known."""
        if piece is not self._last:
            self._last = piece if self._limits.chunk is None and _is_decode_in_order(piece) else None

    def piece(self, running: Sized) -> Piece | None:
        """What all that are ``running`` compute next, where that is known. REQUIRES: nobody else can start."""
        last = self._last
        if last is None or not 0 < len(running) <= len(last.branches):
            return None
        here = [b.sequence is seq for b, seq in zip(last.branches, last.sequences, strict=True)]
        branches = last.branches if all(here) else tuple(compress(last.branches, here))
        if len(branches) != len(running) or len(branches) > self._limits.max_batch_tokens:
            return None
        piece = _one_token_each(branches)
        if not self._has_room(piece.sequences):
            return None
        self._last = piece
        return piece

    def _has_room(self, sequences: List[Sequence]) -> bool:
        """Whether all of them can be given what a token takes, even where forks would need fewer copies."""
        layout, available = self._cache.layout, self._cache.num_available
        if _BLOCKS_EACH * layout.num_groups * len(sequences) <= available:
            return True
        num_new = layout.num_groups * sum(seq.length % layout.page_size == 0 for seq in sequences)
        return num_new + int(self._cache.num_copies(sequences).sum()) <= available


def _is_decode_in_order(piece: Piece) -> bool:
    """Whether each computed one token and is served in order of importance: who has just started came last."""
    order = [(-branch.rank, branch.key) for branch in piece.branches]
    return len(piece.due) == piece.num_tokens and not piece.scored and order == sorted(order)


def _one_token_each(branches: tuple[Branch, ...]) -> Piece:
    sequences = tuple(branch.running_sequence for branch in branches)
    tokens = array("i", [seq.tokens[-1] for seq in sequences])  # type: ignore[index]
    ones, places = np.ones(len(branches), np.int64), np.arange(len(branches))
    return Piece(branches, sequences, ones, tokens, tuple(range(len(branches))), places, num_prefill=0)
