"""The steps of slow branches, one at a time: opened and settled by the engine's thread, computed in the second lane.

While others compute too, a turn takes so large a share of their step that the gaps between their tokens stay steady: a
turn that ran over, because the lane breathes only now and then, is made up for by those after it. While nobody else
does, the lane has all the time, but for a look at the queue now and then.

The lane breathes between matrix products and between segments of attention, so how long a turn is at least follows from
the tokens that a step computes: prompts beside others are cut so that no piece of work takes long next to their step.
While nobody else computes, each step of a prompt takes twice as many tokens as the one before, since every step reads
all pages below; the last of them is given up when others come, and computed again in smaller ones.
Knows no scheduler; chooses no tokens.
"""

from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kvpager.cache.paged_cache import PagedCache
from kvpager.cache.step import Step
from kvpager.engine.model_runner import ModelRunner
from kvpager.engine.piece import Piece
from kvpager.engine.request import Branch
from kvpager.engine.slow_lane import LaneState, SlowLane

TURN_SHARE = 0.15  # of the ordinary step before it
FEWEST_TOKENS, MOST_TOKENS = 64, 512  # of a prompt, in a step beside others
_FIRST_TOKENS = 64
_LARGEST_STEP = 1 << 20  # tokens
_PIECE_SHARES = 0.08, 0.25  # of an ordinary step: pieces below may be twice as long, above they should be half
ALONE_SECONDS = 0.05  # between two looks at the queue


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A step that has ended, and is settled. ``logits``: None where it failed, by ``error``. ``seconds``: for which it
    computed."""

    piece: Piece
    logits: Tensor | None
    error: BaseException | None
    seconds: float


class SlowSteps:
    """``chunk``: as of Limits. ``clock``: seconds."""

    def __init__(self, cache: PagedCache, runner: ModelRunner, chunk: int | None, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._runner = runner
        self.lane = SlowLane(clock)
        self._open: tuple[Piece, Step] | None = None
        self._seconds = 0.0
        self._credit = 0.0
        self._others = 0.0  # the shortest ordinary step beside the one that is under way; 0 where there was none
        self._fewest = max(FEWEST_TOKENS, chunk or 0)  # a piece that must not be cut is never too large
        self.tokens_beside = self.tokens_alone = max(_FIRST_TOKENS, self._fewest)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """Those of the step that is under way; none where none is."""
        return () if self._open is None else self._open[0].branches

    def begin(self, work: List[tuple[Branch, int]]) -> None:
        """Opens a step. Raises OutOfBlocks or TierError with nothing changed. REQUIRES: none is under way."""
        piece = Piece.of(work)
        step = self._cache.step_over(piece.sequences, piece.counts)
        self._open, self._seconds, self._others = (piece, step), 0.0, 0.0
        threads = torch.get_num_threads()
        self.lane.start(
            partial(self._runner.slow_forward, step.batch, piece.tokens, piece.logits_at, self.lane.breathe, threads)
        )

    def turn(self, others: float | None) -> SlowStep | None:
        """The lane's turn; the step, if it has ended. ``others``: seconds that an ordinary step has just taken; None
        where there is none to be computed."""
        if self._open is None:
            return None
        if others is not None and self._is_large():
            self.tokens_alone = self.tokens_beside
            return self.abandon()
        if others is None:
            self._credit = 0.0
            self._seconds += self.lane.turn(ALONE_SECONDS, patient=True)
        else:
            self._others = min(others, self._others or others)
            self._credit = min(self._credit, 0.0) + TURN_SHARE * others
            if self._credit > 0:
                used = self.lane.turn(self._credit, patient=False)
                self._credit -= used
                self._seconds += used
        return self._settle() if self.lane.state is LaneState.DONE else None

    def abandon(self) -> SlowStep | None:
        """Ends the step that is under way, if there is one, at the lane's next breath; nothing of it counts, unless it
        has ended by itself."""
        if self._open is None:
            return None
        self.lane.abandon()
        return self._settle()

    def close(self) -> None:
        """Ends the lane's thread, and the step that is under way."""
        self.abandon()
        self.lane.close()

    def _settle(self) -> SlowStep:
        assert self._open is not None
        (piece, step), self._open = self._open, None
        if piece.num_prefill and self._others:
            self._adapt(self.lane.longest_piece / self._others)
            self.tokens_alone = self.tokens_beside
        elif piece.num_prefill:
            self.tokens_alone = min(_LARGEST_STEP, self.tokens_alone * 2)
        logits, error = None, None
        try:
            with step:
                logits = self.lane.collect()
        except BaseException as raised:
            error = raised
        return SlowStep(piece, logits, error, self._seconds)

    def _is_large(self) -> bool:
        """Whether the step that is under way was meant to be alone, and would keep others waiting."""
        return self._open is not None and not self._others and self._open[0].num_prefill > self.tokens_beside

    def _adapt(self, share: float) -> None:
        """``share``: of an ordinary step, that the longest piece of a step took."""
        short, long = _PIECE_SHARES
        if share > long:
            self.tokens_beside = max(self._fewest, self.tokens_beside // 2)
        elif share < short:
            self.tokens_beside = min(MOST_TOKENS, self.tokens_beside * 2)
