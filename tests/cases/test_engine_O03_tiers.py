"""Open case O-03 over the tiers: device, host and disk, and the numbers add up after every pass. No server yet."""

import random
from pathlib import Path

import pytest

from kvpager.config import DiskTier, HostTier
from kvpager.engine import Engine, FinishReason, Request, Sampling
from kvpager.types import TierKind
from tests.engine.engines import first_choices
from tests.engine.tiers import AlwaysLoad, assert_still, checked_pass
from tests.tiny_model import random_tokens, ref, sharp_prompts, tiny_model

NEW = 8


@pytest.mark.parametrize(("num_blocks", "new_tokens"), [(24, NEW), (17, 20)])
def test_the_numbers_add_up_over_all_tiers_after_every_pass(num_blocks: int, new_tokens: int, tmp_path: Path) -> None:
    generator = random.Random(num_blocks)
    common = random_tokens(generator, 160)
    prompts = sharp_prompts(generator, 20, 40, new_tokens, prefix=common)
    aborted = set(generator.sample(range(20), 5))
    total = 40 if new_tokens == NEW else 20  # every prompt twice
    tiers = (HostTier(pages=24), DiskTier(tmp_path, "2 MiB"))
    with Engine(tiny_model(), page_size=16, num_blocks=num_blocks, tiers=tiers) as engine:
        engine.loading.model = AlwaysLoad(16, engine.layout.block_stride)
        requests: list[Request] = []
        while len(requests) < total or engine.has_work:
            while len(requests) < total and sum(not request.is_finished for request in requests) < 5:
                requests.append(engine.submit(prompts[len(requests) % 20], Sampling(max_tokens=new_tokens)))
            for number in aborted:
                if number < len(requests) and len(requests[number].branches[0].output) >= new_tokens // 2:
                    engine.cancel(requests[number].id)
            before = engine.cache.statistics()
            checked_pass(engine)  # identities of all tiers; no counter of the engine went down
            after = engine.cache.statistics()
            for old, new in zip(before.tiers, after.tiers, strict=True):
                assert new.loaded.pages >= old.loaded.pages
                assert new.stored.pages >= old.stored.pages
            assert sum(after.prefix.by_tier.values()) == after.prefix.hit_tokens <= after.prefix.prompt_tokens
        statistics, cache = engine.statistics(), engine.cache.statistics()
        dones = first_choices(requests)
        for number, done in enumerate(dones):
            assert list(done.token_ids) == ref(prompts[number % 20], new_tokens)[: len(done.token_ids)]
            assert (done.finish_reason is FinishReason.CANCELLED) == (number in aborted)
            assert done.prompt_tokens == done.computed_tokens + sum(done.prefix_by_tier.values())
        assert statistics.prompt_tokens == sum(done.prompt_tokens for done in dones)
        for tier in TierKind:
            assert statistics.prefix_by_tier.get(tier, 0) == sum(done.prefix_by_tier.get(tier, 0) for done in dones)
            resumed = statistics.resumptions.tokens.get(tier, 0) if tier is not TierKind.NONE else 0
            assert cache.prefix.by_tier[tier] == statistics.prefix_by_tier.get(tier, 0) + resumed
        assert sum(statistics.resumptions.by_tier.values()) <= statistics.preemptions
        below = cache.prefix.by_tier[TierKind.HOST] + cache.prefix.by_tier[TierKind.DISK]
        assert below > 0 or num_blocks != 24  # with 17 only the common part is asked for again
        assert cache.migration is not None
        assert cache.migration.io_wait_seconds == 0
        assert_still(engine)
