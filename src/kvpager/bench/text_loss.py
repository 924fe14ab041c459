"""Perplexity of long text when its last tokens attend approximately to an exactly computed context."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.bench.forked_decode import computed, forced_losses, forked, opened
from kvpager.bench.long_text import CHARACTERS, long_text
from kvpager.bench.needle import encode, selective
from kvpager.bench.report import Result
from kvpager.config.attend import EXACT, Attend, SinksAndWindow
from kvpager.errors import InvariantError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TextScale:
    """``contexts`` in tokens, each of them followed by ``scored`` tokens of the text; ``budgets`` in tokens."""

    contexts: tuple[int, ...]
    scored: int
    budgets: tuple[int, ...]


QUICK = TextScale((1024,), 32, (128, 256))
FULL = TextScale((2048, 4096, 7680), 384, (128, 256, 512, 1024))


def ways(budgets: tuple[int, ...]) -> dict[str, Attend]:
    found: dict[str, Attend] = {"exact": EXACT}
    for budget in budgets:
        found[f"selective_{budget}"] = selective(budget)
    for budget in budgets:
        found[f"sinks-and-window_{budget}"] = SinksAndWindow(window=budget - 16, sinks=16)
    return found


def measure(model: "PreTrainedModel", tokenizer: Any, scale: TextScale) -> list[Result]:
    longest = max(scale.contexts) + scale.scored
    tokens = encode(tokenizer, long_text(CHARACTERS * longest))
    if len(tokens) < longest:
        raise InvariantError(f"{len(tokens)} tokens of text where {longest} are needed")
    results = [Result("perplexity_tokens", scale.scored, "tokens")]
    for context in scale.contexts:
        kinds = ways(tuple(budget for budget in scale.budgets if budget < context))
        losses = losses_of(model, tokenizer, tokens, context, scale.scored, list(kinds.values()))
        results.append(Result(f"perplexity_exact/{context}", float(np.exp(losses[0])), ""))
        for name, loss in list(zip(kinds, losses, strict=True))[1:]:
            results.append(Result(f"perplexity_ratio_{name}/{context}", float(np.exp(loss - losses[0])), "of exact's"))
    return results


def losses_of(
    model: "PreTrainedModel", tokenizer: Any, tokens: list[int], context: int, scored: int, kinds: list[Attend]
) -> list[float]:
    """Mean of -log p of the ``scored`` tokens behind ``context``, for each way of attending to it."""
    with opened(model, tokenizer, context + len(kinds) * (scored + 64)) as parts:
        base = computed(parts, tokens[: context - 1])
        forks = [forked(parts, base, kind) for kind in kinds]
        losses: list[float] = forced_losses(parts, forks, tokens[context - 1 : context + scored]).mean(dim=1).tolist()
        return losses
