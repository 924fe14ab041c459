"""A client's request and its branches: what was asked, what has come of it. Knows no scheduler and no model.

A request with n choices has n *branches*. Branch 0 computes the prompt; when its first token is due, the others are
forked from it and share its pages.

                submit             admit              fork (branches 1..n-1)
    (new) ---------------> WAITING -----> RUNNING <------------------ FORKING
                              ^              |
                              +--- preempt --+----> FINISHED (stop, length, cancelled, error)

Token positions of a branch, and who answers for them:

    [0, prefix_tokens)                  found in the prefix index; never computed for this request
    [0, sequence.length)                K and V lie in the pool
    [prompt length, prompt + output)    generated; the last one has no K and V until the next step
"""

from array import array
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kvpager.cache.retention_terms import Retained, Retention
from kvpager.cache.sequence import Sequence
from kvpager.config.attend import EXACT, Attend, describe
from kvpager.engine.detokenizer import Detokenizer
from kvpager.engine.faults import NO_FAULTS, Faults
from kvpager.engine.prompt_logprobs import PromptLogprob, PromptScores
from kvpager.engine.sampling import SampledToken, SamplerRow, TokenLogprob
from kvpager.engine.sampling_params import Sampling
from kvpager.engine.selection import NO_SELECTION, Selection
from kvpager.errors import InvariantError
from kvpager.eviction.policy import StopReason
from kvpager.prefix.hashing import Scope
from kvpager.types import TierKind

if TYPE_CHECKING:
    from kvpager.engine.endings import EndedBy


class BranchState(Enum):
    WAITING = "waiting"
    FORKING = "forking"
    RUNNING = "running"
    FINISHED = "finished"


_MOVES = {
    BranchState.WAITING: {BranchState.RUNNING, BranchState.FINISHED},
    BranchState.FORKING: {BranchState.RUNNING, BranchState.FINISHED},
    BranchState.RUNNING: {BranchState.WAITING, BranchState.FINISHED},
    BranchState.FINISHED: set(),
}


class FinishReason(Enum):
    STOP = "stop"  # an end token, a stop token or a stop string; or nothing may follow, says its guide
    LENGTH = "length"  # max_tokens, the model's context, or the whole pool
    CANCELLED = "cancelled"
    ERROR = "error"  # this request failed; ``error`` says how


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. ``text`` is what became certain with it, perhaps nothing. ``finish_reason`` on the last.

    ``attention``: "exact", or by which approximation it was computed. ``faults``: of its choice so far.
    """

    request_id: int
    choice: int
    token: int | None
    text: str
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    attention: str = EXACT.name
    faults: Faults = NO_FAULTS


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished choice. ``index``: the prompt's place in the call. ``token_ids`` include the token that ended it.

    ``prompt_tokens`` = ``prefix_tokens`` (found, where ``prefix_by_tier`` says) + computed. ``preemptions``: how often
    it was stopped and resumed. ``attention``: "exact", or by which approximation it was computed (config/attend.py).
    ``is_oversized``: its pages did not fit on the device; ``faults``: what reading the others took. ``selection``: what
    selective attention left out, by its own estimate.
    """

    request_id: int
    index: int
    choice: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    prefix_tokens: int
    preemptions: int
    prefix_by_tier: dict[TierKind, int] = field(default_factory=dict)
    logprobs: tuple[SampledToken, ...] = ()
    prompt_logprobs: tuple[PromptLogprob | None, ...] = ()  # where asked for, unless it ended before; None: the first's
    retained: tuple[Retained, ...] = ()  # what became of the request's retentions
    error: str = ""
    attention: str = EXACT.name
    is_oversized: bool = False
    faults: Faults = NO_FAULTS
    selection: Selection = NO_SELECTION

    @property
    def computed_tokens(self) -> int:
        """Of the prompt."""
        return self.prompt_tokens - self.prefix_tokens


@dataclass(slots=True, eq=False)
class Branch:
    """One choice of a request."""

    request: "Request"
    choice: int
    key: int
    sampler: SamplerRow
    detokenizer: Detokenizer | None
    state: BranchState
    output: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[SampledToken] = field(default_factory=list)
    sequence: Sequence | None = None
    prefix_by_tier: dict[TierKind, int] | None = None  # tokens found at its first admission
    preemptions: int = 0
    lost: int = 0  # tokens that were computed when it was last preempted
    waited: int = 0  # scheduling passes since it was last put into the queue, or before
    rank: int = 0  # importance while running: its priority, raised by waiting
    keeps: int | None = None  # blocks that it may have, while it runs; None: as many as it needs
    is_slow: bool = False  # while it runs: in the second lane, as its pages do not fit
    was_slow: bool = False
    served_at: int = -1  # slow step that it was last part of
    earlier_faults: Faults = NO_FAULTS  # of sequences that it has had
    earlier_selection: Selection = NO_SELECTION
    losses: int = 0  # of its pages below the device, one after the other without a token more than before
    furthest: int = 0  # tokens that were computed at the last of them
    stuck_since: float | None = None  # when it first could not begin a step of the second lane that was its turn
    refusals: int = 0  # of such steps, one after the other, with nothing to wait for
    stranded: int = 0  # pages that had to go and that no tier had, when all transfers had ended last
    vain_rounds: int = 0  # of transfers since these have become fewer
    is_alone: bool = False  # it had to make room below for others: in the second lane, no more beside any
    finish_reason: FinishReason | None = None
    stop: StopReason = StopReason.UNKNOWN
    retained: tuple[Retained, ...] = ()  # the answers, once it let go of its pages
    error: str = ""

    def move(self, state: BranchState) -> None:
        if state not in _MOVES[self.state]:
            raise InvariantError(f"branch {self.key} is {self.state.value} and can't become {state.value}")
        self.state = state

    @property
    def prefix_tokens(self) -> int:
        """Tokens found at its first admission."""
        return sum((self.prefix_by_tier or {}).values())

    @property
    def faults(self) -> Faults:
        return self.earlier_faults if self.sequence is None else self.earlier_faults.plus(self.sequence.faults)

    @property
    def selection(self) -> Selection:
        """Of selective attention so far; its memory at the most."""
        if self.sequence is None or self.request.attend is EXACT:
            return self.earlier_selection
        return self.earlier_selection.then(Selection.of(self.sequence.attention))

    def leave_sequence(self) -> None:
        """Its sequence is freed; what it has cost stays known."""
        self.earlier_faults, self.earlier_selection = self.faults, self.selection
        self.sequence = None

    @property
    def num_known(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt) + len(self.output)

    def known_tokens(self) -> "array[int]":
        return self.request.prompt + array("i", self.output)

    @property
    def running_sequence(self) -> Sequence:
        """REQUIRES: running."""
        if self.sequence is None:
            raise InvariantError(f"branch {self.key} is not running")
        return self.sequence

    @property
    def is_scored(self) -> bool:
        """Whether logits of its prompt are still wanted."""
        return self.request.scores is not None and not self.request.scores.is_over

    @property
    def prefix_limit(self) -> int | None:
        """Tokens that may be found instead of being computed; None: all but the last."""
        scores = self.request.scores
        return None if scores is None or scores.is_over else scores.num_scored

    def forks_to_come(self) -> "List[Branch]":
        """The choices that will be forked from this one when the first token is due."""
        if self.choice or self.output or self.request.sampling.n == 1:
            return []
        return [other for other in self.request.branches if other.state is BranchState.FORKING]

    def tell(self, event: TokenEvent) -> None:
        """To whoever listens to the request, if anybody does."""
        if self.request.listener is not None:
            self.request.listener(event)

    def event(self, result: SampledToken | None, text: str) -> TokenEvent:
        """The latest: a token, or none where it ended without one."""
        request, reason = self.request, self.finish_reason
        if result is None:
            return TokenEvent(request.id, self.choice, None, text, None, (), reason, request.attention, self.faults)
        token, logprob, top = result.token, result.logprob, result.top
        return TokenEvent(request.id, self.choice, token, text, logprob, top, reason, request.attention, self.faults)


@dataclass(slots=True, eq=False)
class Request:
    """``priority``: higher goes first; waiting raises it, so nobody waits for ever. ``limit``: tokens at most, with
    the prompt, by the model's context and the pool. ``ended``: says why a choice ended. ``matched``: tokens of the
    prompt that were found when it first started; None before. ``came``: when it was submitted, in the engine's seconds.
    ``started``: when it was first admitted, in the same seconds; None before. ``attend``: how it attends to its
    context. ``listener``: is told of its tokens and endings. ``scores``: of its prompt, where they were asked for.
    """

    id: int
    index: int
    prompt: "array[int]"
    sampling: Sampling
    priority: int
    scope: Scope
    limit: int
    ended: "EndedBy | None" = None
    matched: int | None = None
    came: float = 0.0
    started: float | None = None
    retain: tuple[Retention, ...] = ()
    attend: Attend = EXACT
    listener: Callable[[TokenEvent], None] | None = None
    scores: PromptScores | None = None
    branches: list[Branch] = field(default_factory=list)

    @property
    def attention(self) -> str:
        """How it attends, in words."""
        return EXACT.name if self.attend is EXACT else describe(self.attend)

    @property
    def prompt_logprobs(self) -> tuple[PromptLogprob | None, ...]:
        """Of its prompt's tokens: once its first token has come, or it has ended, if they were asked for; else ()."""
        return self.scores.result() if self.scores is not None and self.scores.is_complete else ()

    @property
    def is_finished(self) -> bool:
        return all(branch.state is BranchState.FINISHED for branch in self.branches)

    def completions(self) -> List[Completion]:
        """All choices. REQUIRES: finished."""
        return [completion(branch) for branch in self.branches]


def completion(branch: Branch) -> Completion:
    """What has come of a finished branch."""
    if branch.finish_reason is None:
        raise InvariantError(f"branch {branch.key} has not finished")
    return Completion(
        request_id=branch.request.id,
        index=branch.request.index,
        choice=branch.choice,
        text="".join(branch.text),
        token_ids=tuple(branch.output),
        finish_reason=branch.finish_reason,
        prompt_tokens=len(branch.request.prompt),
        prefix_tokens=branch.prefix_tokens,
        preemptions=branch.preemptions,
        prefix_by_tier=dict(branch.prefix_by_tier or {}),
        logprobs=tuple(branch.logprobs),
        prompt_logprobs=branch.request.prompt_logprobs,
        retained=branch.retained,
        error=branch.error,
        attention=branch.request.attention,
        is_oversized=branch.was_slow,
        faults=branch.faults,
        selection=branch.selection,
    )
