"""Every supported family through the engine gives what Hugging Face's own generation gives, token for token, in fp32.

Prompts are batched together, computed in chunks, share prefixes, and run in a pool too small for them.
"""

import random
from functools import lru_cache

import pytest
import torch
from transformers import PreTrainedModel

from kvpager.engine import Engine, Sampling
from kvpager.integrations.model_layout import SUPPORTED
from tests.families import FAMILIES, VOCABULARY

NEW_TOKENS = 24
MARGIN = 1e-3  # of the two best logits, below which rounding may decide


def prompts(seed: int, count: int = 8) -> list[list[int]]:
    """Uneven prompts; every other one begins with the same 21 tokens."""
    draw = random.Random(seed)
    common = [draw.randrange(VOCABULARY) for _ in range(21)]
    lengths = [draw.randint(1, 40) for _ in range(count)]
    return [
        (common if i % 2 else []) + [draw.randrange(VOCABULARY) for _ in range(length)]
        for i, length in enumerate(lengths)
    ]


def reference(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], int]:
    """Greedy tokens of plain generation, and how many of them are decided by more than MARGIN, from the first on."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(output.logits).float().topk(2).values
    is_close = (best[:, 0] - best[:, 1] < MARGIN).tolist()
    clear = is_close.index(True) if True in is_close else NEW_TOKENS
    return output.sequences[0, len(prompt) :].tolist(), clear


def test_every_supported_family_is_compared() -> None:
    assert {family.model().config.model_type for family in FAMILIES.values()} == set(SUPPORTED)


@lru_cache(maxsize=2)  # both modes of a family follow each other
def references(name: str) -> list[tuple[list[int], int]]:
    model = FAMILIES[name].model()
    return [reference(model, prompt) for prompt in prompts(seed=len(name))]


@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_the_tokens_of_its_own_generation(name: str, deterministic: bool) -> None:
    model = FAMILIES[name].model()
    asked, expected = prompts(seed=len(name)), references(name)
    assert sum(clear for _, clear in expected) > NEW_TOKENS * len(asked) // 2, "too few clear tokens to compare"
    assert len({token for tokens, _ in expected for token in tokens}) >= 8, "the model repeats itself"
    groups = 2 if 0 < FAMILIES[name].windowed < 4 else 1
    # Room for two of the longest prompts at most: requests wait, and are preempted.
    options = {"page_size": 4, "num_blocks": 45 * groups, "max_batch_tokens": 64, "deterministic": deterministic}
    with Engine(model, **options) as engine:
        found = {done.index: done for done in engine.generate(asked, Sampling(max_tokens=NEW_TOKENS))}
        engine.check()
        assert engine.cache.pool.counts().used == 0
    for index, (tokens, clear) in enumerate(expected):
        assert list(found[index].token_ids[:clear]) == tokens[:clear], f"{name}, prompt {index}"
    if not deterministic:  # which reuses whole pieces of 64 tokens only
        assert sum(done.prefix_tokens for done in found.values()) > 0, "no prefix was reused"


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.windowed])
def test_layers_with_a_window_give_pages_back_while_they_run(name: str) -> None:
    family = FAMILIES[name]
    model = family.model()
    with Engine(model, page_size=4, num_blocks=400, prefix_cache=False) as engine:
        engine.submit(list(range(60)), Sampling(max_tokens=60))
        used = []
        while engine.has_work:
            engine.step()
            engine.check()
            used.append(engine.cache.pool.counts().used)
        layout = engine.layout
    full = sum(group.window is None for group in layout.groups)
    windowed = layout.num_groups - full
    pages = layout.num_pages(119)
    assert max(used) <= full * pages + windowed * 18  # the first chunk, then the window
    assert used[-2] <= full * pages + windowed * 5  # 12 tokens of window lie in at most 4 pages, and one begun
    assert full * pages <= used[-2]
