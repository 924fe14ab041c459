"""Log-probabilities of a request's own prompt, gathered piece by piece while it is computed.

    tokens       t0   t1   t2   t3  | t4          a piece of three tokens, t1 .. t3, whose logits are wanted
    position      0    1    2    3  |  4
    logits at          1 -> t2, 2 -> t3, 3 -> t4
                  ^ num_scored = 1: what follows t0 is known

They are those of the model's logits as they are, in float32: no option of the sampling changes them. Where the request
attends by approximation, so do its scores, which measures what that costs. Of each piece only what was asked for is
kept. Knows no scheduler and no model.
"""

import math
from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from kvpager.engine.sampling import TokenLogprob, alternatives, likeliest

_ROWS = 64  # whose logits are in float32 at a time


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """A token of a prompt and the logarithm of its probability after those before it; -inf where the model forbids it.

    ``top``: as many of the likeliest tokens there as were asked for, likeliest first, equal ones by lower id; fewer
    where the model forbids the rest.
    """

    token: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class PromptScores:
    """Of one request, whatever becomes of its branches. ``num_top``: alternatives for each token.

    ``failure``: why there can be no answer; empty while all goes well.
    """

    def __init__(self, prompt: "array[int]", num_top: int) -> None:
        self._prompt = prompt
        self._num_top = num_top
        self._found: list[PromptLogprob | None] = [None]  # of the prompt's tokens; nothing comes before the first
        self.failure = ""

    @property
    def num_scored(self) -> int:
        """Positions, from the first one, whose logits are not wanted any more."""
        return len(self._found) - 1

    @property
    def is_complete(self) -> bool:
        return len(self._found) == len(self._prompt)

    @property
    def is_over(self) -> bool:
        """Whether no more logits are wanted."""
        return self.is_complete or bool(self.failure)

    def wanted(self, start: int, stop: int) -> range:
        """Of the positions that a piece computes, those whose logits are wanted. REQUIRES: start <= num_scored."""
        return range(max(start, self.num_scored), min(stop, len(self._prompt) - 1))

    def add(self, logits: Tensor) -> None:
        """``logits``: [n, vocab] of the next n wanted positions."""
        for begin in range(0, len(logits), _ROWS):
            rows = logits[begin : begin + _ROWS]
            first = len(self._found)
            found = _score(rows, self._prompt[first : first + len(rows)].tolist(), self._num_top)
            if any(math.isnan(each.logprob) for each in found):
                self.failure = "the logits of the prompt are no distribution: NaN, +inf or no token allowed"
                return
            self._found.extend(found)

    def result(self) -> tuple[PromptLogprob | None, ...]:
        """One for each token of the prompt, None for the first. REQUIRES: complete."""
        return tuple(self._found)


def _score(logits: Tensor, tokens: list[int], num_top: int) -> list[PromptLogprob]:
    """Of the tokens [n] that follow the positions of ``logits`` [n, vocab]."""
    raw = logits.to(torch.float32)
    logprobs = raw.log_softmax(dim=-1)
    own = logprobs.gather(-1, torch.tensor(tokens, device=raw.device)[:, None]).squeeze(-1)
    top = likeliest(raw, num_top)
    values = logprobs.gather(-1, top).tolist()
    return [
        PromptLogprob(token, logprob, alternatives(ids, each))
        for token, logprob, ids, each in zip(tokens, own.tolist(), top.tolist(), values, strict=True)
    ]
