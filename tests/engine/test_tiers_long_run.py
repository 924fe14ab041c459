"""Real threads over real tiers, in pools so small that everything moves: every answer right, all books in order."""

import random
from itertools import product
from pathlib import Path

import pytest

from kvpager import DiskTier, HostTier
from kvpager.engine import Engine, Sampling
from tests.tiny_model import ref, sharp_prompt, tiny_model

TOKENS = 12


@pytest.mark.heavy
def test_every_answer_is_right_whatever_moves_meanwhile(tmp_path: Path) -> None:
    draw = random.Random(5)
    prompts = [sharp_prompt(draw, draw.randint(20, 140), TOKENS) for _ in range(40)]
    expected = [ref(prompt, TOKENS) for prompt in prompts]
    tiers = (
        [HostTier(pages=12), DiskTier(tmp_path / "both", "6 MiB")],
        [DiskTier(tmp_path / "disk", "3 MiB")],
        [HostTier(pages=30)],
    )
    loaded = 0
    for below, write_back, deterministic in product(tiers, ("through", "back", "selective"), (False, True)):
        with Engine(
            tiny_model(),
            num_blocks=draw.choice([14, 20, 30]),
            page_size=16,
            tiers=below,
            write_back=write_back,
            deterministic=deterministic,
            load_deadline=draw.choice([10.0, 0.05]),
        ) as engine:
            for _ in range(3):
                asked = [draw.randrange(len(prompts)) for _ in range(25)]
                for done in engine.generate([prompts[at] for at in asked], Sampling(max_tokens=TOKENS)):
                    assert list(done.token_ids) == expected[asked[done.index]]
                    assert done.prompt_tokens == done.computed_tokens + sum(done.prefix_by_tier.values())
            engine.check()
            now = engine.cache.statistics()
            loaded += sum(tier.loaded.pages for tier in now.tiers)
            assert all(tier.quarantined == 0 and not tier.failures for tier in now.tiers)
    assert loaded > 50  # control: pages did come back from the tiers
