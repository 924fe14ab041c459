"""What int8 and fp8 KV change: perplexity of SmolLM2 on a text, errors of its logits, and how often its choice differs.

The text (kv_accuracy.txt) is run through the pages as the engine runs a prompt: steps of 100 tokens, which begin and
end inside pages, so that scales grow; then one token at a time. Every logit is compared with the same run on a pool in
the model's own type. ``other_steps`` is that pool with steps of another length: what rounding alone does.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.bench.report import Result, report
from kvpager.config import AUTO, Options
from kvpager.memory.layout import QUANTIZED

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

MODEL = "smollm2"
STEP = 100  # tokens, no multiple of a page
ONE_BY_ONE = 200  # tokens at the end


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of a run against the base: ``same_choice`` is the share of positions whose best token is the same."""

    perplexity: float
    max_logit_error: float
    mean_logit_error: float
    same_choice: float


def run(quick: bool = False) -> dict[str, object]:
    from kvpager.models.load import load_model

    loaded = load_model(MODEL)
    assert loaded.tokenizer is not None
    text = files("kvpager.bench").joinpath("kv_accuracy.txt").read_text(encoding="utf-8")
    tokens = loaded.tokenizer(text)["input_ids"][: 500 if quick else None]
    tail = ONE_BY_ONE // 10 if quick else ONE_BY_ONE
    base = logits_of(loaded.model, loaded.tokenizer, tokens, AUTO, _steps(len(tokens), STEP, tail))
    kinds = {"other_steps": (AUTO, 64)} | {dtype: (dtype, STEP) for dtype in QUANTIZED}
    name = str(loaded.model.dtype).removeprefix("torch.")
    results = [Result(f"perplexity/{name}", perplexity(base, tokens), ""), Result("tokens", len(tokens), "tokens")]
    for kind, (dtype, step) in kinds.items():
        logits = logits_of(loaded.model, loaded.tokenizer, tokens, dtype, _steps(len(tokens), step, tail))
        found = compare(logits, base, tokens)
        results += [
            Result(f"perplexity/{kind}", found.perplexity, ""),
            Result(f"max_logit_error/{kind}", found.max_logit_error, "logit"),
            Result(f"mean_logit_error/{kind}", found.mean_logit_error, "logit"),
            Result(f"same_choice/{kind}", 100 * found.same_choice, "percent"),
        ]
    return report("kv_accuracy", results)


def logits_of(model: "PreTrainedModel", tokenizer: Any, tokens: list[int], kv_dtype: str, steps: list[int]) -> "Tensor":
    """[tokens, vocabulary]: teacher-forced, through a pool of its own in ``kv_dtype``."""
    import torch

    from kvpager.engine.setup import build

    parts = build(model, tokenizer, Options(kv_dtype=kv_dtype, prefix_cache=False), len(tokens) // 16 + 8)
    with parts.cache as cache, parts.runner.running():
        seq = cache.sequence(tokens)
        pieces, start = [], 0
        for count in steps:
            with cache.step({seq: count}) as step:
                new = array("i", tokens[start : start + count])
                pieces.append(parts.runner.forward(step.batch, new, np.arange(count)))
            start += count
        return torch.cat(pieces)


def perplexity(logits: "Tensor", tokens: list[int]) -> float:
    """exp of the mean of -log p(token | the tokens before it), natural, over all but the first."""
    import torch
    from torch.nn.functional import cross_entropy

    total = 0.0
    for first in range(0, len(tokens) - 1, STEP):
        targets = torch.tensor(tokens[first + 1 : first + 1 + STEP], device=logits.device)
        total += float(cross_entropy(logits[first : first + len(targets)].float(), targets, reduction="sum"))
    return float(np.exp(total / (len(tokens) - 1)))


def compare(logits: "Tensor", base: "Tensor", tokens: list[int]) -> Accuracy:
    largest, total, same = 0.0, 0.0, 0
    for first in range(0, len(tokens), STEP):
        part, reference = logits[first : first + STEP], base[first : first + STEP]
        error = (part.float() - reference.float()).abs()
        largest, total = max(largest, float(error.max())), total + float(error.sum())
        same += int((part.argmax(-1) == reference.argmax(-1)).sum())
    return Accuracy(perplexity(logits, tokens), largest, total / logits.numel(), same / len(logits))


def _steps(tokens: int, step: int, tail: int) -> list[int]:
    return [*_cut(tokens - tail, step), *[1] * tail]


def _cut(tokens: int, step: int) -> Iterator[int]:
    for start in range(0, tokens, step):
        yield min(step, tokens - start)
