"""An engine over a quantized pool: near to the exact one, the same with and without hits, and off by default."""

import random
from functools import partial

import pytest
import torch

from kvpager.engine import Engine, Sampling
from kvpager.errors import ConfigError
from kvpager.integrations.transformers import attach
from kvpager.memory.layout import QUANTIZED
from tests.cache.caches import published_blocks
from tests.engine import determinism
from tests.engine.engines import assert_idle
from tests.tiny_model import random_tokens, ref, sharp_prompt, threads, tiny_model

GREEDY = Sampling(max_tokens=8)


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    done = sorted(engine.generate(prompts, GREEDY), key=lambda each: each.index)
    return [list(each.token_ids) for each in done]


def test_it_is_off_by_default() -> None:
    with Engine(tiny_model(), page_size=16, num_blocks=8) as engine:
        assert engine.cache.layout.dtype == "float32"
    with attach(tiny_model(), num_blocks=8) as paged:
        assert paged.cache.layout.dtype == "float32"


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_hits_give_the_bytes_that_were_stored(dtype: str) -> None:
    prompt = random_tokens(random.Random(0), 70)
    with Engine(tiny_model(), page_size=16, num_blocks=64, kv_dtype=dtype, debug=True) as engine:
        assert engine.cache.layout.dtype == dtype
        answers(engine, [prompt])
        before = published_blocks(engine.cache)
        assert len(before) == 4
        answers(engine, [[*prompt[:40], 1, 2, 3], prompt, prompt[:60]])
        assert engine.cache.statistics().prefix.hit_tokens == 40 + 64 + 59
        after = published_blocks(engine.cache)
        assert {block: after[block] for block in before} == before
        assert_idle(engine)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_answers_stay_those_of_the_exact_pool_where_the_model_is_sure(dtype: str) -> None:
    generator = random.Random(1)
    prompts = [sharp_prompt(generator, length, 8) for length in (5, 20, 37, 64)]
    with Engine(tiny_model(), page_size=16, num_blocks=64, kv_dtype=dtype) as engine:
        found = answers(engine, prompts)
    first = [each[0] == ref(prompt, 8)[0] for each, prompt in zip(found, prompts, strict=True)]
    assert all(first)


def test_deterministic_mode_is_bit_equal_over_int8_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits, preemptions, batch mates and cancels: the scales of a page follow from its own tokens."""
    monkeypatch.setattr(determinism, "Engine", partial(Engine, kv_dtype="int8"))
    with threads(1):
        seen = determinism.run_schedules(range(4))
    assert seen.prefix_tokens > 0
    assert seen.preemptions > 0


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_attach_takes_a_quantized_type(dtype: str) -> None:
    model = tiny_model()
    inputs = {"input_ids": torch.tensor([random_tokens(random.Random(2), 40)])}
    with torch.no_grad():
        expected = model(**inputs).logits
        with attach(model, num_blocks=16, kv_dtype=dtype) as paged, paged.open(**inputs) as past:
            assert paged.cache.layout.dtype == dtype
            found = model(**inputs, past_key_values=past).logits
    error = (found - expected).abs().max() / expected.abs().max()
    assert 0 < error < 0.25  # the weights are random, and the logits near each other


@pytest.mark.parametrize("dtype", ["bfloat16", "int4", ""])
def test_another_type_than_the_model_s_is_refused(dtype: str) -> None:
    with pytest.raises(ConfigError, match="kv_dtype"):
        attach(tiny_model(), num_blocks=8, kv_dtype=dtype)
    with pytest.raises(ConfigError, match="kv_dtype"):
        Engine(tiny_model(), page_size=16, num_blocks=8, kv_dtype=dtype)
    with attach(tiny_model(), num_blocks=8, kv_dtype="float32") as paged:
        assert paged.cache.layout.dtype == "float32"
