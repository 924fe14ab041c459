"""Open case O-06: rubbish in unused slots is harmless."""

import pytest
import torch

from kvpager import KVLayout, open_cache
from kvpager.attention import backends, select
from tests.attention.bench import Bench, fill_arena
from tests.stamp import T

LAYOUT = KVLayout(layers=2, kv_heads=2, head_dim=8, dtype="float32", page_size=16)
NAMES = [each.name for each in backends() if each.is_available]
LENGTHS = (1, 15, 16, 17, 40)


def answers(name: str, byte: int, *, poison: bool) -> bytes:
    """The output bits of requests of several lengths, in a pool that was full of ``byte`` before. With ``poison`` an
    earlier request wrote NaN and Inf into every block, and was freed."""
    with open_cache(LAYOUT, num_blocks=16) as cache:
        fill_arena(cache, byte)
        backend = select(LAYOUT, name)
        if poison:
            bad = cache.sequence()
            rows = torch.full((16 * 16, 2, 8), float("nan"))
            rows[::2] = float("inf")
            with cache.step({bad: 16 * 16}) as step:
                plan = backend.plan(step.batch, cache.arena)
                for layer in range(2):
                    plan.run(layer, torch.ones(16 * 16, 4, 8), rows, rows)
            bad.free()
            cache.check()
        bench = Bench(cache, backend, 4)
        seqs = [cache.sequence(T(1000 * n, 1000 * n + n + 2)) for n in LENGTHS]
        outputs = []
        for seq, length in zip(seqs, LENGTHS, strict=True):
            outputs += bench.step({seq: length})
        for _ in range(3):
            outputs += bench.step(dict.fromkeys(seqs, 1))
        cache.check()
        return torch.cat([out.flatten() for out in outputs]).numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_nan_before_the_first_use_changes_no_bit(name: str) -> None:
    assert answers(name, 0xFF, poison=False) == answers(name, 0x00, poison=False)


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_inf_of_an_earlier_request_change_no_bit(name: str) -> None:
    assert answers(name, 0xFF, poison=True) == answers(name, 0x00, poison=False)


def test_a_masked_nan_does_poison_a_plain_matrix_product() -> None:
    """The control: weight 0 times NaN is NaN, so the tests above can fail."""
    values = torch.tensor([[1.0], [float("nan")]])
    assert torch.isnan(torch.tensor([[1.0, 0.0]]) @ values).all()
