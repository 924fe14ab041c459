"""``kvpager bench appendix_c`` with a tiny model: all figures are there, and they are what their names say."""

import math

import pytest

from kvpager.bench import appendix_row5, appendix_rows, appendix_waste
from kvpager.bench.appendix_rows import RowScale, compare
from kvpager.bench.appendix_scenario import GENERATION_HEAVY, scaled_row
from kvpager.bench.appendix_served import serve
from kvpager.bench.report import Result
from kvpager.bench.workloads import Ask
from kvpager.engine import Engine, Sampling
from kvpager.errors import InvariantError
from tests.tiny_model import tiny_model

CONTEXT = 256
ASKS = [
    Ask(tuple(range(first, first + prompt)), output)
    for first, prompt, output in ((9, 30, 5), (99, 50, 12), (199, 20, 9))
]


@pytest.fixture(scope="module")
def figures() -> dict[str, Result]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appendix_rows, "TARGETS", {1: 4.0})
        results = appendix_rows.measure(_model(), RowScale(CONTEXT, CONTEXT, requests=8, turns=2))
    return {result.name: result for result in results}


def _model() -> object:
    return tiny_model()


def test_every_figure_is_a_number(figures: dict[str, Result]) -> None:
    assert all(math.isfinite(each.value) for each in figures.values())
    assert {"appendix_c_row1_vs_contiguous", "appendix_c_row1_generation_vs_contiguous"} <= figures.keys()
    assert figures["appendix_c_row1_vs_contiguous"].at_least == 4.0


def test_contiguous_allocation_runs_one_context_at_a_time(figures: dict[str, Result]) -> None:
    assert figures["appendix_c_row1_most_running/contiguous"].value == 1
    assert figures["appendix_c_row1_most_running/paged"].value > 2
    assert figures["concurrency_vs_contiguous/row1"].value > 1
    assert (
        figures["appendix_c_row1_equal_answers"].value == figures["appendix_c_row1_generation_equal_answers"].value == 1
    )


@pytest.mark.parametrize("regime", appendix_rows.REGIMES)
def test_the_parts_of_the_pool_add_up_to_no_more_than_it(figures: dict[str, Result], regime: str) -> None:
    parts = [
        figures[f"appendix_c_row1_{part}_share/{regime}"].value for part in ("used", "future", "wasted", "stranded")
    ]
    assert all(part >= 0 for part in parts)
    assert sum(parts) <= 1 + 1e-9


def test_what_was_reserved_is_split_by_what_becomes_of_it() -> None:
    with Engine(
        _model(), num_blocks=3, page_size=64, max_context=192, allocation="contiguous", max_running=8
    ) as engine:
        use = serve(engine, ASKS).use
    assert use.most_running == 1
    assert use.reserved / use.pool == pytest.approx(1, abs=0.5)
    assert use.wasted > use.future > 0, "most of a context is never filled by these"


def test_room_in_pieces_counts_as_fragmented() -> None:
    lengths = ((9, 16, 4), (99, 30, 18), (199, 60, 5))  # 2, 3 and 4 blocks
    asks = [Ask(tuple(range(first, first + prompt)), output) for first, prompt, output in lengths]
    for allocation in ("contiguous-exact", "paged"):
        with Engine(_model(), num_blocks=7, page_size=16, allocation=allocation, max_running=8) as engine:
            use = serve(engine, asks).use
        assert (use.fragmented > 0) == (allocation != "paged"), "4 blocks are free, 2 on each side of 3"
        assert use.stranded >= use.fragmented


def test_prompts_computed_elsewhere_leave_one_token_of_each_to_compute() -> None:
    setting = {"num_blocks": 12, "page_size": 16, "max_context": 192, "max_running": 8}
    outputs = []
    for allocation in ("paged", "contiguous"):
        with Engine(_model(), allocation=allocation, **setting) as engine:
            served = serve(engine, ASKS, prompts_elsewhere=True)
            computed = engine.cache.statistics().computed_tokens
        prompts = sum(len(ask.prompt) - 1 for ask in ASKS)
        assert computed - prompts == served.tokens == sum(ask.max_tokens for ask in ASKS)
        assert engine.statistics().preemptions == 0
        outputs.append(served.outputs)
    assert outputs[0] == outputs[1]
    with Engine(_model(), **setting) as engine:
        assert serve(engine, ASKS).outputs != outputs[0], "their K and V are not those of the prompts"


def test_the_rows_keep_the_ratio_of_what_is_wanted_to_what_is_there() -> None:
    at_once = {number: scaled_row(number, 2048).at_once for number in (1, 2, 3, 4, 5)}
    assert at_once == {1: 8, 2: 17, 3: 13, 4: 13, 5: 10}
    for number in (1, 2, 3, 4):
        row = scaled_row(number, 2048)
        assert row.num_blocks(32) == 64
        assert all(len(ask.prompt) + ask.max_tokens - 1 <= 2048 for ask in row.asks(34, 49152))
    assert scaled_row(5, 2048).memory_tokens < 2048


def test_the_forms_differ_in_the_split_of_the_same_lengths() -> None:
    row = scaled_row(4, 2048)
    trace, generation = row.asks(34, 49152), row.asks(34, 49152, GENERATION_HEAVY)
    assert [len(ask.prompt) + ask.max_tokens for ask in trace] == [
        len(ask.prompt) + ask.max_tokens for ask in generation
    ]
    shares = [
        sum(ask.max_tokens for ask in asks) / sum(len(ask.prompt) for ask in asks) for asks in (trace, generation)
    ]
    assert shares[0] < 0.3
    assert shares[1] == pytest.approx(338 / 161, rel=0.02)


def test_row_5_is_refused_without_paging_and_runs_with_it() -> None:
    figures = {result.name: result.value for result in appendix_row5.measure(_model(), 256, page_size=8)}
    assert figures["appendix_c_row5_runs"] == 1
    assert figures["appendix_c_row5_refused/contiguous"] == 10
    assert figures["appendix_c_row5_refused/paged"] == 0


def test_waste_is_half_a_page_a_request() -> None:
    lengths = [(100 + at % 32, 64) for at in range(64)]
    share = appendix_waste.waste_share(lengths, 32)
    assert share == pytest.approx(15.5 / (15.5 + 115.5 + 32), rel=0.1)
    assert appendix_waste.waste_share(lengths, 1) == 0


def test_other_tokens_are_an_error_and_ties_are_not() -> None:
    with Engine(tiny_model(), num_blocks=8) as engine:
        one = list(engine.generate([[1, 2, 3]], Sampling(max_tokens=4, logprobs=2)))
        other = list(engine.generate([[4, 5, 6]], Sampling(max_tokens=4, logprobs=2)))
    compare(one, one)
    assert one[0].token_ids != other[0].token_ids
    with pytest.raises(InvariantError, match="other tokens"):
        compare(one, other)
