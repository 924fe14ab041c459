"""Digests, selection and attention over page lists in C++: bounds hold, and the reference says the same."""

from typing import Any

import numpy as np
import pytest
import torch

from kvpager import KVLayout, native
from kvpager.attention import selective_reference as reference
from kvpager.attention.backend import LayerOptions
from kvpager.attention.digests import Digests
from kvpager.attention.head_pages import part_rows
from kvpager.attention.page_selection import PageBudget, Selected, estimate_spread, select_pages
from tests.native.paged import Paged

MODULE = native.module()
pytestmark = pytest.mark.skipif(MODULE is None, reason=native.why_not())
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Pages:
    """``count`` pages of random parts of one layer, anywhere in memory. ``keys`` [pages, kv_heads, page_size, dim]."""

    def __init__(
        self, count: int, kv_heads: int, head_dim: int, page_size: int, dtype: str, kind: str = "normal", group: int = 4
    ):
        self.layout = KVLayout(layers=1, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, page_size=page_size)
        generator = torch.Generator().manual_seed(count + head_dim + page_size)
        rows = torch.randn(count, kv_heads, 2, page_size, head_dim, generator=generator)
        if kind == "outliers":  # some channels far from 0, some wide, some always the same
            rows[..., ::7] = rows[..., ::7] * 0.1 + 30
            rows[..., 3::11] *= 20
            rows[..., 5] = 2.5
        if kind == "zero":
            rows.zero_()
        self.queries = torch.randn(group * kv_heads, head_dim, generator=generator)
        if kind == "topics":  # keys come in runs that are alike, and each query asks for one of them
            topics = torch.randn(count * page_size // 48 + 1, kv_heads, head_dim, generator=generator)
            by_token = topics.repeat_interleave(48, dim=0)[: count * page_size]
            by_page = by_token.view(count, page_size, kv_heads, head_dim).transpose(1, 2)
            rows[:, :, 0] = 0.6 * rows[:, :, 0] + 0.8 * by_page
            asked = torch.randint(len(topics), (4 * kv_heads,), generator=generator)
            self.queries = 0.7 * self.queries + topics[asked, torch.arange(4 * kv_heads) // 4]
        self.queries = self.queries.to(DTYPES[dtype])
        self.rows = rows.to(DTYPES[dtype])
        order = torch.randperm(count, generator=generator)
        self.memory = self.rows[order].contiguous()
        places = torch.argsort(order).numpy()
        self.addresses = self.memory.data_ptr() + places * self.memory[0].nbytes
        self.numbers = np.arange(count)

    @property
    def keys(self) -> np.ndarray:
        return self.rows[:, :, 0].double().numpy()

    def digests(self) -> Digests:
        digests = Digests(self.layout, 0)
        digests.update(self.numbers, self.addresses)
        return digests

    def scores(
        self, digests: Digests, scale: float, softcap: float = 0.0, lean: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        stride = -(-len(self.numbers) // 16) * 16
        found = np.empty((2, len(self.queries), stride), np.float32)
        spread = estimate_spread(self.layout.page_size, self.layout.groups[0].head_dim)
        rows = self.queries.data_ptr(), self.queries.stride(0), self.layout.dtype
        MODULE.score_digests(
            digests.table(MODULE), len(self.queries), *rows, scale, softcap, spread, lean, found[0], found[1]
        )
        return found[0, :, : len(self.numbers)], found[1, :, : len(self.numbers)]

    def true_scores(self, scale: float) -> np.ndarray:
        """[query_heads, pages, page_size] in fp64."""
        folded = self.queries.double().numpy().reshape(self.keys.shape[1], -1, self.keys.shape[3])
        found = np.einsum("hgd,phsd->hgps", folded, self.keys)
        return scale * found.reshape(len(self.queries), len(self.keys), -1)


SHAPES = [(40, 2, 64, 16, "bfloat16"), (17, 2, 128, 64, "bfloat16"), (33, 1, 80, 5, "float16"), (5, 2, 7, 1, "float32")]


@pytest.mark.parametrize("kind", ["normal", "outliers", "zero"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [0.3, -0.3])
def test_no_key_scores_above_the_bound(isa: str, shape: Any, kind: str, scale: float) -> None:
    pages = Pages(*shape, kind)
    bounds, estimates = pages.scores(pages.digests(), scale)
    assert (bounds >= pages.true_scores(scale).max(axis=2)).all()
    assert (estimates <= bounds).all()


@pytest.mark.parametrize("group", [1, 2, 3, 5, 6, 7, 8, 12])
def test_every_query_head_has_its_own_scores(isa: str, group: int) -> None:
    pages = Pages(20, 2, 64, 16, "bfloat16", group=group)
    digests = pages.digests()
    spread = estimate_spread(16, 64)
    expected = reference.scores(pages.queries.float().numpy(), *digests.values(20), 0.5, None, spread, 0.25)
    for found, slow in zip(pages.scores(digests, 0.5, lean=0.25), expected, strict=True):
        np.testing.assert_allclose(found, slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_digests_and_scores_are_those_of_the_reference(isa: str, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(*shape, "outliers")
    digests = pages.digests()
    centres, radii = digests.values(len(pages.numbers))
    bounds, estimates = pages.scores(digests, 0.2, 15.0)
    monkeypatch.setattr(native, "module", lambda: None)
    slow = pages.digests()
    step = np.abs(slow.values(len(pages.numbers))[0]).max() / 127
    for found, expected in zip((centres, radii), slow.values(len(pages.numbers)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1.01 * step)  # a code may round the other way
    spread = estimate_spread(pages.layout.page_size, shape[2])
    expected = reference.scores(pages.queries.float().numpy(), centres, radii, 0.2, 15.0, spread)
    np.testing.assert_allclose(bounds, expected[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(estimates, expected[1], rtol=1e-4, atol=1e-4)


def test_digests_are_tight(isa: str) -> None:
    """The bound over the codes against the one over exact means and largest distances from them."""
    pages = Pages(64, 2, 128, 16, "bfloat16")
    bounds, _ = pages.scores(pages.digests(), 1.0)
    mean = pages.keys.mean(axis=2)
    reach = np.abs(pages.keys - mean[:, :, None]).max(axis=2)
    folded = pages.queries.double().numpy().reshape(2, -1, 128)
    ideal = np.einsum("hgd,phd->hgp", folded, mean) + np.einsum("hgd,phd->hgp", np.abs(folded), reach)
    assert (bounds / ideal.reshape(bounds.shape)).mean() < 1.01


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ranks_lie_between_the_mean_and_the_bound(isa: str, shape: Any) -> None:
    pages = Pages(*shape, "normal")
    digests = pages.digests()
    ranks = {lean: pages.scores(digests, 0.3, lean=lean)[0] for lean in (0.0, 0.5, 1.0)}
    mean = pages.true_scores(0.3).mean(axis=2)
    assert np.abs(ranks[0.0] - mean).max() < 0.02 * np.abs(mean).max()  # codes are rounded
    np.testing.assert_allclose(ranks[0.5], (ranks[0.0] + ranks[1.0]) / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_key_that_is_no_number_is_above_all_others(isa: str, bad: float) -> None:
    pages = Pages(20, 2, 64, 16, "bfloat16")
    pages.memory[int((pages.addresses[7] - pages.memory.data_ptr()) // pages.memory[0].nbytes), 1, 0, 3, 9] = bad
    bounds, estimates = pages.scores(pages.digests(), 1.0)
    assert np.isfinite(bounds).all()
    assert np.isfinite(estimates).all()
    assert (bounds[4:].argmax(axis=1) == 7).all()
    assert (bounds[:4, 7] < 1e10).all()  # the other head is as it was


# -- selection -------------------------------------------------------------------------------------------------------


def selected_both_ways(pages: Pages, budget: PageBudget, options: LayerOptions) -> tuple[Selected, Selected]:
    digests = pages.digests()
    if budget.num_pages > len(pages.numbers) + 1:
        raise AssertionError("one page without a digest at most")
    kv_heads = pages.keys.shape[1]
    fast = select_pages(digests, pages.queries, options, budget, kv_heads, pages.layout.page_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "module", lambda: None)
        slow = select_pages(digests, pages.queries, options, budget, kv_heads, pages.layout.page_size)
    return fast, slow


BUDGETS = [
    PageBudget(61, 2, 57, 12, None),
    PageBudget(60, 0, 59, 2, None),
    PageBudget(61, 3, 40, 5, None),  # fewer than are always in
    PageBudget(61, 1, 60, 61, None),
    PageBudget(61, 1, 60, 61, 0.5),
    PageBudget(61, 1, 60, 61, 0.99),
    PageBudget(60, 0, 60, 60, 1.0),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_reference_selects_the_same(isa: str, budget: PageBudget) -> None:
    pages = Pages(60, 3, 40, 16, "float16", "outliers")
    fast, slow = selected_both_ways(pages, budget, LayerOptions(scale=0.05))
    assert np.array_equal(fast.offsets, slow.offsets)
    assert np.array_equal(fast.pages, slow.pages)
    np.testing.assert_allclose(fast.log_skipped, slow.log_skipped, rtol=1e-3, atol=1e-3)
    for head in range(3):
        mine = fast.pages[fast.offsets[head] : fast.offsets[head + 1]]
        always = {*range(budget.num_sinks), *range(budget.first_recent, budget.num_pages)}
        assert always <= set(mine.tolist())
        assert (np.diff(mine) > 0).all()
        if budget.mass is None:
            assert len(mine) == max(budget.wanted, len(always))


def test_pages_of_equal_score_fill_the_budget_from_the_front(isa: str) -> None:
    pages = Pages(60, 2, 64, 16, "float32", "zero")
    fast, slow = selected_both_ways(pages, PageBudget(60, 1, 58, 7, None), LayerOptions())
    assert np.array_equal(fast.pages, [0, 1, 2, 3, 4, 58, 59] * 2)
    assert np.array_equal(slow.pages, fast.pages)


def test_a_larger_mass_takes_more_pages_and_leaves_less(isa: str) -> None:
    pages = Pages(200, 2, 64, 16, "float32")
    counts, skipped = [], []
    for mass in (0.2, 0.5, 0.8, 0.95, 1.0):
        fast, _ = selected_both_ways(pages, PageBudget(200, 1, 199, 200, mass), LayerOptions(scale=0.2))
        counts.append(len(fast.pages))
        skipped.append(fast.log_skipped.max())
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] / 2
    assert skipped == sorted(skipped, reverse=True)


def masses(pages: Pages, selected: Selected, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Share of each query head's attention that is left out, [query_heads]: estimated and true."""
    scores = pages.true_scores(scale)
    whole = np.exp(scores - scores.max()).sum(axis=2)
    kept = np.zeros_like(whole)
    for head, mine in enumerate(np.split(selected.pages, selected.offsets[1:-1])):
        kept[4 * head : 4 * head + 4, mine] = whole[4 * head : 4 * head + 4, mine]
    lse = np.log(kept.sum(axis=1)) + scores.max()
    return 1 / (1 + np.exp(lse - selected.log_skipped)), 1 - kept.sum(axis=1) / whole.sum(axis=1)


@pytest.mark.parametrize("kind", ["normal", "topics"])
@pytest.mark.parametrize(("count", "page_size"), [(256, 16), (64, 64)])
def test_what_is_left_out_is_estimated(isa: str, kind: str, count: int, page_size: int) -> None:
    pages = Pages(count, 2, 64, page_size, "bfloat16", kind)
    for budget in (PageBudget(count, 1, count - 1, count // 8, None), PageBudget(count, 1, count - 1, count, 0.9)):
        found = select_pages(pages.digests(), pages.queries, LayerOptions(), budget, 2, page_size)
        estimated, true = masses(pages, found, 64**-0.5)
        off = np.abs(estimated - true)
        # keys of a page of 64 are of two topics, and what two lumps sum up to is estimated as if they were one
        assert off.mean() < (0.01 if page_size < 48 or kind == "normal" else 0.08)
        assert off.max() < (0.02 if page_size < 48 or kind == "normal" else 0.35)
        if budget.mass:
            assert true.max() < 0.13
        if kind == "topics" and not budget.mass:
            assert true.mean() < 0.4  # an eighth of the pages; at random it would be 0.88


# -- attention over page lists ---------------------------------------------------------------------------------------


def attend_lists(case: Paged, lists: list[np.ndarray], last_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = torch.empty(case.q.shape[1:]), torch.empty(case.q.shape[1])
    flat = np.concatenate(lists)
    addresses = case.layer_arguments["address"] + case.tables[0][flat] * np.int64(case.layer_arguments["block_stride"])
    offsets = np.cumsum([0, *map(len, lists)])
    sinks = case.options.sinks
    MODULE.attend_head_pages(
        MODULE.CacheLayer(**{**case.layer_arguments, "address": 64}),
        offsets,
        addresses,
        last_tokens,
        case.q.shape[1],
        case.q.data_ptr(),
        case.q.stride(1),
        case.q_dtype,
        out.data_ptr(),
        out.stride(0),
        "float32",
        case.head_dim**-0.5 if case.options.scale is None else case.options.scale,
        case.options.softcap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
        lse.data_ptr(),
    )
    return out, lse


@pytest.mark.parametrize(
    "shape",
    [
        {"kv_heads": 2, "group": 4, "head_dim": 128, "page_size": 16, "dtype": "bfloat16", "q_dtype": "bfloat16"},
        {"kv_heads": 3, "group": 1, "head_dim": 64, "page_size": 64, "dtype": "float16", "q_dtype": "float16"},
        {"kv_heads": 1, "group": 12, "head_dim": 40, "page_size": 7},
    ],
    ids=str,
)
def test_lists_of_all_pages_give_the_bits_of_the_whole(isa: str, shape: dict[str, Any]) -> None:
    sinks = torch.linspace(-1, 1, shape["kv_heads"] * shape["group"])
    case = Paged([4300], [1], options=LayerOptions(softcap=20.0, sinks=sinks), **shape)
    num_pages = len(case.tables[0])
    out, lse = attend_lists(case, [np.arange(num_pages)] * case.kv_heads, 4300 - (num_pages - 1) * case.page_size)
    assert torch.equal(out.to(case.q.dtype), case.run()[0])
    assert lse.isfinite().all()


def test_each_head_attends_to_its_own_pages(isa: str) -> None:
    case = Paged([2300], [1], kv_heads=3, group=2, head_dim=64, page_size=16)
    rng = np.random.default_rng(1)
    last = len(case.tables[0]) - 1
    lists = [np.append(np.sort(rng.choice(last, count, replace=False)), last) for count in (5, 140, 0)]
    tokens = 2300 - last * 16
    out, lse = attend_lists(case, lists, tokens)
    held = [
        case.view.float()[torch.from_numpy(case.tables[0][pages].astype(np.int64)), head]
        for head, pages in enumerate(lists)
    ]
    expected, expected_lse = reference.attend(case.q[0], held, tokens, case.options)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-5)


def test_an_empty_list_sees_nothing() -> None:
    case = Paged([40], [1], kv_heads=2)
    out, lse = attend_lists(case, [np.arange(10), np.arange(0)], 4)
    assert (out[2:] == 0).all()
    assert (lse[2:] == -torch.inf).all()
    assert lse[:2].isfinite().all()


# -- wrong arguments -------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused() -> None:
    pages = Pages(20, 2, 64, 16, "bfloat16")
    digests = pages.digests()
    table, rows = digests.table(MODULE), part_rows(MODULE, pages.layout, 0)
    MODULE.update_digests(table, rows, pages.numbers, pages.addresses)
    with pytest.raises(IndexError, match="pages\\[0\\] is 32"):
        MODULE.update_digests(table, rows, np.array([32]), pages.addresses[:1])
    with pytest.raises(ValueError, match="expected one per page"):
        MODULE.update_digests(table, rows, pages.numbers, pages.addresses[:1])
    with pytest.raises(ValueError, match="a page without one"):
        MODULE.update_digests(table, rows, pages.numbers, pages.addresses * 0)
    with pytest.raises(ValueError, match="aligned to 64"):
        MODULE.DigestTable(address=8, num_tiles=1, kv_heads=1, head_dim=1)
    case = Paged([40], [1], kv_heads=2)
    assert attend_lists(case, [np.arange(10), np.arange(10)], 4)[0].isfinite().all()
    for lists, last_tokens, reason in (([np.arange(10)], 4, "offsets"), ([np.arange(10)] * 2, 5, "last_tokens")):
        with pytest.raises(ValueError, match=reason):
            attend_lists(case, lists, last_tokens)
