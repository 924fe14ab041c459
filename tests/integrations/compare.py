"""What plain Hugging Face generation says, and how far rounding could not change it."""

import random
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kvpager.cache.paged_cache import PagedCache
from tests.families import FAMILIES

MARGIN = 1e-3  # of the two best logits, below which rounding may decide


def family_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A tiny model with an output matrix of its own: tied to large embeddings, it would only repeat its last token."""
    family = FAMILIES[name]
    model = replace(family, options=family.options | {"tie_word_embeddings": False}).model(seed)
    if getattr(model.config, "attn_logit_softcapping", None):
        model.set_attn_implementation("eager")  # the default of transformers 5.20 leaves the soft-cap out
    return model


def padded(rows: list[list[int]], pad: int = 0) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask`` [rows, columns] of prompts of uneven lengths, padded on the left."""
    columns = max(map(len, rows))
    ids = [[pad] * (columns - len(row)) + row for row in rows]
    mask = [[0] * (columns - len(row)) + [1] * len(row) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def random_rows(seed: int, lengths: list[int], vocabulary: int, prefix: list[int] | None = None) -> list[list[int]]:
    """Prompts of these lengths, after ``prefix``; 0, the padding, is not among them."""
    draw = random.Random(seed)
    return [[*(prefix or []), *(draw.randrange(1, vocabulary) for _ in range(length))] for length in lengths]


def generate(model: PreTrainedModel, inputs: dict[str, Tensor], new_tokens: int, **options: Any) -> Tensor:
    """[rows, columns + new_tokens] token ids; greedy unless ``options`` say otherwise."""
    with warnings.catch_warnings():
        # The name that works in all supported versions; theirs to remove in 6.0.
        warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
        return model.generate(**inputs, **{"max_new_tokens": new_tokens, "do_sample": False, **options})


def clear_tokens(model: PreTrainedModel, inputs: dict[str, Tensor], new_tokens: int) -> list[list[int]]:
    """Per row: the greedy tokens of plain generation, as far as each is decided by more than MARGIN."""
    output = generate(model, inputs, new_tokens, output_logits=True, return_dict_in_generate=True)
    best = torch.stack(output.logits, dim=1).topk(2).values
    is_clear = (best[..., 0] - best[..., 1] > MARGIN).long().cumprod(dim=1).sum(dim=1).tolist()
    new = output.sequences[:, inputs["input_ids"].shape[1] :].tolist()
    return [tokens[:clear] for tokens, clear in zip(new, is_clear, strict=True)]


def assert_begins_with(output: Tensor, inputs: dict[str, Tensor], expected: list[list[int]]) -> None:
    """Every row's new tokens begin with the expected ones."""
    new = output[:, inputs["input_ids"].shape[1] :].tolist()
    assert [row[: len(clear)] for row, clear in zip(new, expected, strict=True)] == expected


def assert_nothing_held(cache: PagedCache) -> None:
    """All books agree, and no page is in use."""
    cache.check()
    counts = cache.pool.counts()
    assert (counts.used, counts.moving, len(cache.sequences)) == (0, 0, 0)
