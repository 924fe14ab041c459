"""A pass as one native call over sequences that share their first blocks: the bits of one over copies of them."""

import pytest
import torch

from kvpager import native
from tests.integrations.test_native_step import Case, decoder_of, same_products  # noqa: F401 (the fixture is used)

if native.module() is None:
    pytest.skip(f"no native kernels: {native.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import CpuBackend

PAGES = 70  # of 4 tokens: two tiles and a bit
LENGTHS, QUERIES = [*([290] * 9), 300, 281, 400], [*([1] * 9), 2, 1, 60]


def case_over(layout: object, are_shared: bool) -> Case:
    case = Case(layout, LENGTHS, QUERIES)
    blocks = case.world.arena.blocks
    for tables in case.batch.tables:
        for table in tables[1:]:
            blocks[table[:PAGES]] = blocks[tables[0][:PAGES]]
            if are_shared:
                table[:PAGES] = tables[0][:PAGES]
    case.plan = CpuBackend().plan(case.batch, case.world.arena)
    return case


@pytest.mark.parametrize("name", ["llama", "qwen3-windows"])
def test_shared_blocks_give_the_bits_of_copies(name: str) -> None:
    with decoder_of(name, torch.float32) as (layout, decoder):
        copies = case_over(layout, are_shared=False)
        expected = copies.whole(decoder, copies.last(), 1)
        assert expected.isfinite().all()
        for threads in (1, 2, 7, 16):
            case = case_over(layout, are_shared=True)
            assert torch.equal(case.whole(decoder, case.last(), threads), expected)
        layers = case_over(layout, are_shared=True)
        assert torch.equal(layers.layers(decoder, layers.last()), expected)
