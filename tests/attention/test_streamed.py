"""Attention over pages that are not resident: the bits of attention over resident ones, in every shape."""

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.backend import LayerOptions
from kvpager.memory.layout import KVLayout
from kvpager.types import TierKind
from tests.attention.paged_out import World

if native.module() is None:
    pytest.skip(f"no native kernels: {native.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import CpuBackend

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])


def pattern(name: str, world: World, s: int, group: int) -> None:
    pages = world.full_pages(s)
    rng = np.random.default_rng(s)
    if name == "all":
        world.page_out(s, group, pages, TierKind.DISK)
    elif name == "alternating":
        world.page_out(s, group, pages[::2], TierKind.DISK)
    elif name == "in place":
        world.page_out(s, group, pages[: len(pages) * 3 // 4], TierKind.HOST, in_place=True)
    else:
        where = rng.integers(0, 4, len(pages))
        world.page_out(s, group, pages[where == 1], TierKind.DISK)
        world.page_out(s, group, pages[where == 2], TierKind.HOST, in_place=True)
        world.page_out(s, group, pages[where == 3], TierKind.REMOTE)


def check_same_bits(world: World, name: str) -> list[Tensor]:
    expected = world.run(CpuBackend())
    assert all(out.isfinite().all() for out in expected)
    for group in range(world.layout.num_groups):
        for s in range(len(world.lengths)):
            if world.lengths[s] > 100:
                pattern(name, world, s, group)
    found = world.run(CpuBackend())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for stream in world.window.streams:
        assert not stream.is_open
        assert stream.is_exhausted
    return expected


@pytest.mark.parametrize("name", ["all", "alternating", "in place", "random"])
@pytest.mark.parametrize("page_size", [1, 4, 16, 24, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_decode(dtype: str, page_size: int, name: str) -> None:
    layout = KVLayout(2, 2, 16, dtype, page_size)
    world = World(layout, [5000, 60, 2100, 130], [1, 2, 3, 1], 4, LayerOptions(softcap=20.0, sinks=SINKS))
    check_same_bits(world, name)


@pytest.mark.parametrize("name", ["all", "random"])
@pytest.mark.parametrize("page_size", [4, 16, 24, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_prefill(dtype: str, page_size: int, name: str) -> None:
    layout = KVLayout(2, 2, 16, dtype, page_size)
    world = World(layout, [4500, 60, 2100, 330], [70, 2, 90, 30], 4, LayerOptions(softcap=20.0, sinks=SINKS))
    check_same_bits(world, name)
