"""One context, computed exactly and once, then continued token by token in several ways of attending, in one batch.

    context  [ prompt, exact ......... ]
    way A                              [ one token a step, exact     ]      forks share the context's pages
    way B                              [ one token a step, selective ]

So whatever differs between two ways is what attention did in decode steps. Knows no texts and no measures.
"""

import itertools
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.attention.make_state import make_state
from kvpager.config import Options
from kvpager.config.attend import EXACT, Attend
from kvpager.engine.setup import EngineParts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from kvpager.attention.states import LayerState
    from kvpager.cache.sequence import Sequence as CachedSequence

CHUNK = 512  # tokens of a prompt at once


@contextmanager
def opened(model: "PreTrainedModel", tokenizer: Any, num_tokens: int, page_size: int = 16) -> Iterator[EngineParts]:
    """A pool of ``num_tokens`` tokens and what runs ``model`` over it."""
    from kvpager.engine.setup import build

    parts = build(model, tokenizer, Options(page_size=page_size), -(-num_tokens // page_size))
    with parts.cache, parts.runner.running():
        yield parts


def computed(parts: EngineParts, prompt: Sequence[int]) -> "CachedSequence":
    """A sequence of which all tokens of ``prompt`` are computed exactly; its beginning may come from the cache."""
    seq = parts.cache.sequence(prompt)
    while seq.length < len(prompt):
        start, count = seq.length, min(CHUNK, len(prompt) - seq.length)
        with parts.cache.step({seq: count}) as step:
            parts.runner.forward(step.batch, array("i", prompt[start : start + count]), np.array([count - 1]))
    return seq


def forked(parts: EngineParts, context: "CachedSequence", attend: Attend, more_prompt: int = 0) -> "CachedSequence":
    """A fork that attends so from now on. ``more_prompt``: tokens of a prompt to come, which SnapKV counts."""
    state = None if attend == EXACT else make_state(parts.limits.layout, attend, context.length + more_prompt)
    return forked_with(context, state)


def forked_with(context: "CachedSequence", state: "LayerState | None") -> "CachedSequence":
    fork = context.fork()
    fork.attention = state
    return fork


def next_logits(parts: EngineParts, sequences: Sequence["CachedSequence"], tokens: Sequence[int]) -> "Tensor":
    """[sequences, vocabulary] after one more token of each."""
    for seq, token in zip(sequences, tokens, strict=True):
        seq.append(token)
    with parts.cache.step(dict.fromkeys(sequences, 1)) as step:
        return parts.runner.forward(step.batch, array("i", tokens), np.arange(len(tokens)))


def answers(
    parts: EngineParts, sequences: Sequence["CachedSequence"], question: Sequence[int], num_tokens: int
) -> list[list[int]]:
    """What each says to ``question``, its likeliest ``num_tokens`` tokens; they are computed a token a step."""
    for token in question:
        logits = next_logits(parts, sequences, [token] * len(sequences))
    said = [logits.argmax(-1).tolist()]
    for _ in range(num_tokens - 1):
        said.append(next_logits(parts, sequences, said[-1]).argmax(-1).tolist())
    return [list(each) for each in zip(*said, strict=True)]


def forced_losses(parts: EngineParts, sequences: Sequence["CachedSequence"], text: Sequence[int]) -> "Tensor":
    """-log p of the tokens of ``text`` but the first, given all before: float32 [sequences, len(text) - 1]."""
    import torch
    from torch.nn.functional import cross_entropy

    losses = []
    for token, target in itertools.pairwise(text):
        logits = next_logits(parts, sequences, [token] * len(sequences))
        losses.append(cross_entropy(logits.float(), torch.full((len(sequences),), target), reduction="none"))
    return torch.stack(losses, dim=1)
