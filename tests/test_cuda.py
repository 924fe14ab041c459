"""The same bookkeeping on a CUDA device: bytes by hand, and a model's tokens. Skipped where there is none."""

import random

import numpy as np
import pytest
import torch

from kvpager import HostTier, KVLayout, PagedCache, Sequence, open_cache
from kvpager.engine import Engine, Sampling
from kvpager.tiers.rows import TorchRows
from kvpager.types import TierKind
from tests.tiny_model import ref, sharp_prompt, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def test_rows_written_by_hand_are_read_back_through_forks_and_copies() -> None:
    layout = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="bfloat16", page_size=4)
    with open_cache(layout, num_blocks=16, device="cuda") as cache:
        seq = cache.sequence()
        k = torch.randn(2, 10, 2, 8, dtype=torch.bfloat16, device="cuda")
        seq.write(0, k, -k)
        twin = seq.fork()
        twin.write(10, k[:, :3], k[:, :3])
        cache.check()
        assert torch.equal(seq.read(0, 10)[0], k)
        assert torch.equal(twin.read(0, 10)[1], -k)
        assert torch.equal(twin.read(10, 13)[0], k[:, :3])


def test_the_engine_gives_the_tokens_of_plain_generation() -> None:
    draw = random.Random(0)
    prompts = [sharp_prompt(draw, length, 16) for length in (5, 40, 90)]
    with Engine(tiny_model().to("cuda"), num_blocks=24) as engine:
        for done in engine.generate(prompts, Sampling(max_tokens=16)):
            assert list(done.token_ids) == ref(prompts[done.index], 16)
        engine.check()


@pytest.mark.parametrize("write_back", ["through", "back"])
def test_pages_go_to_pinned_memory_and_come_back_with_every_byte(write_back: str) -> None:
    layout = KVLayout(layers=2, kv_heads=2, head_dim=64, dtype="bfloat16", page_size=16)
    tiers = [HostTier("64 MiB")]
    with open_cache(layout, num_blocks=6, device="cuda", tiers=tiers, write_back=write_back) as cache:
        contents = {}
        for start in (1, 1001, 2001, 1, 1001):
            tokens = list(range(start, start + 70))
            seq = cache.sequence(tokens)
            k = contents.setdefault(start, torch.randn(2, 70, 2, 64, dtype=torch.bfloat16, device="cuda"))
            found = seq.prefix_tokens
            with cache.step({seq: 70 - found}):
                _fill(cache, seq, k, found)
            assert torch.equal(seq.read(0, 70)[0], k)
            assert torch.equal(seq.read(0, 70)[1], -k)
            cache.check()
            seq.free()
        assert seq.prefix_by_tier[TierKind.HOST] > 0


def _fill(cache: PagedCache, seq: Sequence, k: torch.Tensor, start: int) -> None:
    rows = TorchRows(cache.arena, cache.layout)
    positions = np.arange(start, k.shape[1])
    blocks = seq.tables[0].snapshot()[positions // cache.layout.page_size]
    for layer in range(cache.layout.layers):
        rows.write(layer, blocks, positions % cache.layout.page_size, k[layer, start:], -k[layer, start:])
