"""Sequences that share their first blocks: the bits of the same call where each has copies of its own."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

from kvpager import native
from kvpager.attention.backend import LayerOptions
from tests.native.paged import Paged

MODULE = native.module()
pytestmark = pytest.mark.skipif(MODULE is None, reason=native.why_not())


def share(case: Paged, owners: list[int], tokens: list[int]) -> list[np.ndarray]:
    """Gives sequence i copies of the first pages of sequence owners[i] that ``tokens[i]`` fill. Returns the tables
    where the blocks themselves are shared."""
    blocks = case.pool.view(case.num_blocks, -1)
    shared: list[np.ndarray] = []
    for table, owner, count in zip(case.tables, owners, tokens, strict=True):
        pages = min(count, case.lengths[owner]) // case.page_size
        pages = min(pages, len(table))
        blocks[table[:pages]] = blocks[case.tables[owner][:pages]].clone()
        mine = table.copy()
        mine[:pages] = shared[owner][:pages] if owner < len(shared) else table[:pages]
        shared.append(mine)
    return shared


def check(case: Paged, owners: list[int], tokens: list[int]) -> None:
    shared = share(case, owners, tokens)
    alone = case.run()
    case.tables = shared
    together = case.run()
    assert alone.isfinite().all()
    assert torch.equal(together, alone)


def random_case(seed: int) -> tuple[Paged, list[int], list[int]]:
    rng = np.random.default_rng(seed)
    count = int(rng.choice([2, 3, 9, 24]))
    longest = int(rng.choice([300, 2200])) if count < 9 else 300
    lengths = rng.integers(1, longest, count)
    lengths[rng.random(count) < 0.5] = longest  # many of the same
    queries = [int(min(n, rng.choice([1, 1, 1, 2, 3, 30]))) for n in lengths]
    kv_heads, group = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3, 4, 5, 6, 7, 8]))
    sinks = torch.from_numpy(rng.standard_normal(kv_heads * group)).float()
    case = Paged(
        lengths.tolist(),
        queries,
        kv_heads=kv_heads,
        group=group,
        head_dim=int(rng.choice([7, 16, 64, 80, 128])),
        page_size=int(rng.choice([12, 16, 32, 100, 128])),
        dtype=str(rng.choice(["float32", "bfloat16", "float16", "int8", "float8_e4m3"])),
        q_dtype=str(rng.choice(["float32", "bfloat16"])),
        window=[None, None, None, 70, 200, 2100][rng.integers(6)],
        options=LayerOptions(
            softcap=[None, None, 30.0][rng.integers(3)],
            sinks=[None, sinks][rng.integers(2)],
        ),
        order=seed,
    )
    owners = [int(rng.integers(0, i + 1)) if rng.random() < 0.8 else i for i in range(count)]
    return case, owners, rng.choice([0, 128, 256, 290, 2100], count).tolist()


@pytest.mark.parametrize("seed", range(12))
def test_shared_blocks_give_the_bits_of_copies(isa: str, seed: int) -> None:
    check(*random_case(seed))


@pytest.mark.parametrize("tokens", [127, 128, 2048, 2200])
def test_prefixes_that_end_anywhere(tokens: int) -> None:
    lengths = [4200, 4111, 4200, 4196, 2300]
    case = Paged(lengths, [1, 2, 1, 1, 1], kv_heads=2, group=3, head_dim=64, page_size=32, dtype="bfloat16")
    check(case, [0] * 5, [tokens] * 5)


def test_the_number_of_threads_changes_no_bit(threads: Callable[[int], AbstractContextManager[None]]) -> None:
    case = Paged([700] * 20 + [4500, 40], [1] * 22, kv_heads=3, group=3, head_dim=64, page_size=64, dtype="bfloat16")
    shared = share(case, [0] * 22, [600] * 22)
    alone = case.run()
    case.tables = shared
    for count in (1, 2, 3, 5):
        with threads(count):
            assert torch.equal(case.run(), alone)


def test_other_contents_change_the_answer() -> None:
    """The control: were the shared blocks not read, a change of them would not be seen by all."""
    case = Paged([300] * 4, [1] * 4, page_size=16)
    case.tables = share(case, [0] * 4, [256] * 4)
    before = case.run()
    case.view[case.tables[0][3]] += 1.0
    assert (case.run() != before).reshape(4, -1).any(1).all()


def test_a_sequence_that_is_prefilled_beside_those_that_share() -> None:
    case = Paged([600, 600, 600, 600], [1, 90, 1, 1], kv_heads=1, group=4, head_dim=64, page_size=16)
    check(case, [0] * 4, [400] * 4)
