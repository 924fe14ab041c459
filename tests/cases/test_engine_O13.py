"""Open case O-13 through the engine: the whole prompt is cached."""

import random

import pytest

from kvpager.engine import Engine, Sampling
from tests.engine.engines import ask, assert_idle, drive, first_choices
from tests.tiny_model import ref, sharp_prompt, tiny_model


@pytest.mark.parametrize("inside", [False, True], ids=["whole pages", "inside pages"])
@pytest.mark.parametrize("deterministic", [False, True], ids=["default", "deterministic"])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 48, 64, 65])
def test_a_cached_prompt_computes_at_least_one_token(length: int, inside: bool, deterministic: bool) -> None:
    generator = random.Random(length)
    prompt, cold = sharp_prompt(generator, length, 8), sharp_prompt(generator, 40, 8)
    found = []
    with Engine(tiny_model(), page_size=16, num_blocks=64, partial_hits=inside, deterministic=deterministic) as engine:
        for turn, new_tokens in enumerate((8, 8, 1)):
            batch = [prompt, cold] if turn == 1 else [prompt]
            computed = engine.cache.statistics().computed_tokens
            requests = ask(engine, batch, Sampling(max_tokens=new_tokens))
            drive(engine)
            done = first_choices(requests)
            assert [list(each.token_ids) for each in done] == [ref(each, 8)[:new_tokens] for each in batch]
            found.append(done[0].prefix_tokens)
            fresh = sum(each.prompt_tokens - each.prefix_tokens for each in done)
            assert engine.cache.statistics().computed_tokens - computed == fresh + len(batch) * (new_tokens - 1)
        assert_idle(engine)
    whole_pages = (length - 1) // 16 * 16
    warm = (length - 1) // 64 * 64 if deterministic else length - 1 if inside else whole_pages
    if inside and not deterministic:
        assert found[0] == 0
        assert all(whole_pages <= each <= length - 1 for each in found[1:])
        assert length < 17 or found[1] == warm  # a prompt below one page was published with its answer, or not at all
    else:
        assert found == [0, warm, warm]
