"""From the logits of a piece to what each branch gets: its next token, and the scores of its prompt. Ends no branch."""

from collections.abc import Sequence as List
from dataclasses import dataclass

from torch import Tensor

from kvpager.engine.piece import Piece
from kvpager.engine.request import Branch
from kvpager.engine.sampling import SampledToken, SamplingFailure, sample


@dataclass(frozen=True, slots=True)
class Chosen:
    """``result``: None where no token was asked for, only its prompt."""

    branch: Branch
    result: SampledToken | SamplingFailure | None


def keep_scores(piece: Piece, logits: Tensor, is_here: List[bool] | None = None) -> None:
    """Keeps what is wanted of the prompts' logits. ``is_here``: for each branch, whether the step counts for it."""
    for each in piece.scored:
        scores = piece.branches[each.at].request.scores
        if scores is not None and (is_here is None or is_here[each.at]):
            scores.add(logits[each.rows])


def choose(branches: List[Branch], logits: Tensor) -> list[Chosen]:
    """The next token of each branch, and of those that will be forked from it; ``logits`` [branches, vocab]."""
    chosen: list[Branch] = []
    rows: list[int] = []
    ended: list[Chosen] = []
    if all(branch.output for branch in branches):  # each has its first token: no forks, nothing else was asked for
        results = sample(logits, [branch.sampler for branch in branches])
        return [Chosen(branch, result) for branch, result in zip(branches, results, strict=True)]
    for row, branch in enumerate(branches):
        request = branch.request
        family = [branch, *branch.forks_to_come()]
        if request.scores is not None and request.scores.failure:
            ended += [Chosen(each, SamplingFailure(request.scores.failure)) for each in family]
        elif not request.sampling.max_tokens:
            ended += [Chosen(each, None) for each in family]
        else:
            chosen += family
            rows += [row] * len(family)
    if rows != list(range(len(logits))):
        logits = logits[rows]
    results = sample(logits, [branch.sampler for branch in chosen])
    return [Chosen(branch, result) for branch, result in zip(chosen, results, strict=True)] + ended
