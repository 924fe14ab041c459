"""Open case O-03 through the engine: the numbers add up after every step. No server, and the device tier only."""

import random

import pytest

from kvpager.engine import Engine, FinishReason, Request, Sampling
from tests.engine.engines import assert_idle, block_counts, checked_step
from tests.tiny_model import VOCABULARY, random_tokens, ref, sharp_prompts, tiny_model

NEW = 8


def assert_numbers(engine: Engine) -> None:
    counts, cache, statistics = block_counts(engine), engine.cache.statistics(), engine.statistics()
    assert counts.moving == 0
    assert 0.0 <= counts.utilisation <= 1.0
    assert 0.0 <= cache.prefix.hit_rate <= 1.0
    assert cache.prefix.hit_tokens <= cache.prefix.prompt_tokens
    assert statistics.prefix_tokens <= statistics.prompt_tokens
    tier = engine.cache.tiers[0].usage()
    assert (tier.free, tier.used, tier.cached, tier.moving) == (counts.free, counts.used, counts.cached, counts.moving)
    assert tier.used_bytes == (counts.total - counts.free) * engine.layout.block_stride
    # A block shared by k sequences counts once.
    mapped = [block for branch in engine.branches() for block in branch.sequence.tables[0].mapped_blocks().tolist()]
    assert counts.used == len(set(mapped))
    assert cache.shared_blocks == len({block for block in mapped if mapped.count(block) > 1})
    assert cache.published_blocks >= counts.cached


@pytest.mark.parametrize(("num_blocks", "new_tokens"), [(64, NEW), (24, NEW), (17, 40)])
def test_the_numbers_add_up_after_every_step(num_blocks: int, new_tokens: int) -> None:
    generator = random.Random(num_blocks)
    common = random_tokens(generator, 160)
    prompts = sharp_prompts(generator, 20, 40, new_tokens, prefix=common)
    aborted = set(generator.sample(range(20), 5))
    with Engine(tiny_model(), page_size=16, num_blocks=num_blocks) as engine:
        requests: list[Request] = []
        while len(requests) < 20 or engine.has_work:
            while len(requests) < 20 and sum(not request.is_finished for request in requests) < 5:
                requests.append(engine.submit(prompts[len(requests)], Sampling(max_tokens=new_tokens)))
            for number in aborted:
                if number < len(requests) and len(requests[number].branches[0].output) >= new_tokens // 2:
                    engine.cancel(requests[number].id)
                    assert_numbers(engine)
            checked_step(engine)  # no counter went down
            assert_numbers(engine)
        statistics, cache = engine.statistics(), engine.cache.statistics()
        completions = [request.completions()[0] for request in requests]
        for number, done in enumerate(completions):
            count = len(done.token_ids)
            assert list(done.token_ids) == ref(prompts[number], new_tokens)[:count]
            assert (done.finish_reason is FinishReason.CANCELLED) == (number in aborted)
            assert count == (new_tokens // 2 if number in aborted else new_tokens)
        assert statistics.finished_requests == 20
        assert statistics.prompt_tokens == sum(done.prompt_tokens for done in completions) == 4000
        assert statistics.prefix_tokens == sum(done.prefix_tokens for done in completions) > 10 * 160
        assert statistics.generated_tokens == sum(len(done.token_ids) for done in completions)
        assert statistics.preemptions == sum(done.preemptions for done in completions)
        assert (statistics.preemptions > 0) == (num_blocks == 17)  # with 24, they are admitted so that they fit
        # Known tokens that were looked up = computed + found, over first and later admissions; each answer's last
        # token is never computed, and a preempted branch gives up what it had.
        if statistics.preemptions == 0:
            answers = sum(len(done.token_ids) - 1 for done in completions)
            assert cache.computed_tokens == statistics.prompt_tokens - statistics.prefix_tokens + answers
            assert cache.prefix.hit_tokens == statistics.prefix_tokens
        assert cache.prefix.lookups == 20 + statistics.preemptions
        assert_idle(engine)


def test_an_idle_engine_uses_nothing_and_its_cache_can_be_emptied() -> None:
    generator = random.Random(1)
    with Engine(tiny_model(), page_size=16, num_blocks=64) as engine:
        for _ in range(3):
            list(engine.generate([[generator.randrange(VOCABULARY) for _ in range(100)]] * 3, Sampling(max_tokens=4)))
            assert_idle(engine)
            assert_numbers(engine)
        assert block_counts(engine).cached > 0
        engine.cache.clear_prefix()
        assert block_counts(engine).free == 64
