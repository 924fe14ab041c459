"""TM and REF of the open cases: a tiny Llama made from a config, and what plain Hugging Face generation says of it.

REF counts only for prompts whose two best logits differ by more than MARGIN at every step, so that rounding can't
decide a case; ``sharp_prompt`` draws until it has one.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 512
CONTEXT = 512
MARGIN = 1e-3


def tiny_model(seed: int = 0, **options: Any) -> LlamaForCausalLM:
    """TM; the same weights for the same seed. ``options`` change the config."""
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.2,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **options,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


@lru_cache(maxsize=4)
def _reference(seed: int) -> LlamaForCausalLM:
    return tiny_model(seed)


@dataclass(frozen=True, slots=True)
class Greedy:
    """``margin``: the least distance between the two best logits."""

    tokens: tuple[int, ...]
    margin: float


_known: dict[tuple[tuple[int, ...], int, int], Greedy] = {}  # by prompt, number of tokens, and seed of the weights


def _greedy(prompt: list[int], new_tokens: int, seed: int) -> Greedy:
    key = (tuple(prompt), new_tokens, seed)
    if key not in _known:
        (_known[key],) = _generate([prompt], new_tokens, seed)
    return _known[key]


def _generate(prompts: list[list[int]], new_tokens: int, seed: int) -> list[Greedy]:
    """Of prompts of one length."""
    ids = torch.tensor(prompts)
    output = _reference(seed).generate(
        ids,
        attention_mask=torch.ones_like(ids),  # generate() would guess one from the pad id
        max_new_tokens=new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(output.logits, dim=1).topk(2).values  # [prompts, new tokens, 2]
    margins = (best[..., 0] - best[..., 1]).amin(dim=1).tolist()
    tokens = output.sequences[:, ids.shape[1] :].tolist()
    return [Greedy(tuple(each), margin) for each, margin in zip(tokens, margins, strict=True)]


def ref(prompt: list[int], new_tokens: int, seed: int = 0) -> list[int]:
    """REF: the greedy tokens of TM (with the weights of ``seed``) by plain Hugging Face generation, one request."""
    return list(_greedy(prompt, new_tokens, seed).tokens)


def is_sharp(prompt: list[int], new_tokens: int, seed: int = 0) -> bool:
    """Whether rounding can't decide the next ``new_tokens``."""
    return _greedy(prompt, new_tokens, seed).margin > MARGIN


def random_tokens(generator: random.Random, length: int) -> list[int]:
    return [generator.randrange(VOCABULARY) for _ in range(length)]


def sharp_prompt(
    generator: random.Random, length: int, new_tokens: int, prefix: list[int] | None = None, seed: int = 0
) -> list[int]:
    """A random prompt of ``length`` tokens, after ``prefix``, for which REF counts."""
    while True:
        prompt = [*(prefix or []), *random_tokens(generator, length)]
        if is_sharp(prompt, new_tokens, seed):
            return prompt


def sharp_prompts(
    generator: random.Random, count: int, length: int, new_tokens: int, prefix: list[int] | None = None
) -> list[list[int]]:
    """``count`` of them, all of one length, whose REF is computed in one batch without padding, which is quick.

    A batch rounds differently, but rounding can't decide these.
    """
    prompts: list[list[int]] = []
    while len(prompts) < count:
        drawn = [[*(prefix or []), *random_tokens(generator, length)] for _ in range(count - len(prompts))]
        for prompt, greedy in zip(drawn, _generate(drawn, new_tokens, seed=0), strict=True):
            if greedy.margin > MARGIN:
                _known[tuple(prompt), new_tokens, 0] = greedy
                prompts.append(prompt)
    return prompts


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch computes with ``count`` threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
