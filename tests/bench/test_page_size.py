"""Page sizes: the rule, what the figures are made of, and that small cases run."""

import numpy as np
import pytest

from kvpager.bench import page_size_hits, page_size_waste
from kvpager.bench.page_size_advice import Advice, advise
from kvpager.bench.page_size_attention import measure
from kvpager.bench.page_size_hits import conversation_trace
from kvpager.bench.page_size_models import MODELS, PAGE_SIZES, described_kib
from kvpager.bench.page_size_rate import seconds_a_step
from kvpager.bench.workload_lengths import Turn
from kvpager.simulator.trace import Trace
from tests.tiny_model import tiny_model


def test_the_smallest_page_within_both_limits_is_recommended():
    assert advise({8: 1.10, 16: 1.03, 32: 1.0}, {8: 0.001, 16: 0.01, 32: 0.02}) == Advice(16, True)
    assert advise({8: 1.02, 16: 1.03, 32: 1.0}, {8: 0.001, 16: 0.01, 32: 0.02}) == Advice(8, True)


def test_without_one_within_both_limits_their_sum_decides():
    assert advise({8: 1.10, 16: 1.05, 32: 1.0}, {8: 0.01, 16: 0.03, 32: 0.09}) == Advice(16, False)


def test_appendix_a_takes_the_larger_of_what_model_and_context_ask_for():
    assert [described_kib(8, 512), described_kib(8, 4096), described_kib(70.6, 512)] == [8, 16, 32]
    assert [described_kib(8, 32768), described_kib(8, 1 << 21), described_kib(120, 512)] == [32, 64, 64]


def test_a_page_is_shown_in_one_layer_and_in_all():
    small = MODELS[0]
    assert (small.layer_kib(32), small.page_kib(32)) == (24, 720)


def test_waste_is_half_a_page_a_request_and_tables_shrink_with_pages():
    lengths = page_size_waste.lengths_around(4096)
    assert np.median(lengths) == pytest.approx(4096, abs=2)
    for size in PAGE_SIZES:
        assert page_size_waste.waste(4096, size) == pytest.approx(size / 2 / lengths.mean(), rel=0.25)
    assert page_size_waste.table_bytes(32768, 8) > 8 * page_size_waste.table_bytes(32768, 256)


def test_bookkeeping_is_timed_for_every_page_size():
    assert set(page_size_waste.bookkeeping_microseconds((8, 16), 16, context=32)) == {8, 16}


@pytest.mark.parametrize("page_size", [8, 100])
def test_conversations_share_what_their_tokens_share(page_size):
    """Against prompts whose tokens are really there."""
    conversations = [(Turn(0.0, 250, 5), Turn(2.0, 300, 5)), (Turn(1.0, 40, 5),), *[(Turn(3.0, 9, 1),)] * 3]
    trace = conversation_trace(conversations, page_size)
    prompts = [prompt for prompt, _ in sorted(_prompts(conversations), key=lambda each: each[1])]
    for one in range(trace.num_requests):
        for other in range(trace.num_requests):
            a, b = prompts[one], prompts[other]
            same = next((at for at in range(min(len(a), len(b))) if a[at] != b[at]), min(len(a), len(b)))
            assert _shared_pages(trace, one, other, page_size) >= min(same, len(a), len(b)) // page_size
            if one != other:
                assert _shared_pages(trace, one, other, page_size) == same // page_size


def _prompts(conversations):
    for number, turns in enumerate(conversations):
        system = number % 4
        head = [("system", system, at) for at in range(page_size_hits._SYSTEM_PROMPTS[system])]
        for turn in turns:
            yield head + [("own", number, at) for at in range(turn.prompt_tokens)], turn.at


def _shared_pages(trace: Trace, one: int, other: int, page_size: int) -> int:
    a, b = (trace.pages[trace.first[each] : trace.first[each + 1]] for each in (one, other))
    count = min(len(a), len(b))
    differs = np.flatnonzero(a[:count] != b[:count])
    return int(differs[0]) if len(differs) else count


def test_hits_do_not_grow_with_the_page():
    found = page_size_hits.made_up((8, 64, 256))
    assert 0.2 < found[256] <= found[64] <= found[8] < 1


def test_attention_and_rates_of_small_cases_are_measured():
    found = measure(MODELS[0], 128, (8, 32), 256, 0.0, 0)
    assert set(found.over_best) == {8, 32}
    assert min(found.milliseconds.values()) > 0
    assert seconds_a_step(tiny_model(), 8, 2, 64, 2) > 0
