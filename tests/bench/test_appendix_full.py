"""Appendix C at full scale: the loads, the simulation of stated hardware, and that real runs calibrate it."""

import math

import pytest

from kvpager.bench import appendix_full_oversized, appendix_full_true
from kvpager.bench.appendix_full_calibration import CalibrationScale, calibrate
from kvpager.bench.appendix_full_loads import LENGTHS, ROWS, AppendixRow, mean_share, requests_of
from kvpager.bench.appendix_full_model import small_model
from kvpager.bench.appendix_full_simulated import SETTINGS, Setting, serve
from kvpager.bench.appendix_full_true import TrueScale
from kvpager.errors import ConfigError
from kvpager.simulator.service_hardware import H200, LLAMA_8B, LLAMA_70B, costs_of, kv_capacity
from tests.tiny_model import tiny_model


@pytest.mark.parametrize("lengths", LENGTHS)
def test_no_request_is_longer_than_its_context_and_lengths_fill_what_they_say(lengths):
    low, high = {"trace": (0.05, 0.15), "narrow": (0.2, 0.4), "full": (1.0, 1.0)}[lengths]
    for row in ROWS[:4]:
        requests = requests_of(row, lengths, rounds=2)
        assert len(requests) == 2 * row.requests
        assert max(request.final for request in requests) <= row.context
        assert low <= mean_share(requests, row.context) <= high
    assert requests_of(ROWS[0], lengths) == requests_of(ROWS[0], lengths)


def test_a_data_sheet_becomes_costs():
    costs = costs_of(H200, LLAMA_8B)
    assert costs.weights == pytest.approx(16.06e9 / (4.8e12 * 0.8))
    assert costs.kv == pytest.approx(131_072 / (4.8e12 * 0.8))
    assert kv_capacity(H200, LLAMA_8B) == int((0.9 * 141e9 - 16.06e9) // 131_072)
    with pytest.raises(ConfigError, match="leaves no room"):
        kv_capacity(H200, LLAMA_70B)


def test_contiguous_refuses_ten_times_a_million_and_pages_serve_them():
    row, setting = ROWS[4], SETTINGS[0]
    requests = requests_of(row, "full")
    paged, contiguous = (serve(setting, requests, row, regime) for regime in ("paged", "contiguous"))
    assert (paged.completed, contiguous.completed, contiguous.refused) == (10, 0, 10)
    assert paged.sent_tokens > 0


def test_pages_serve_a_row_faster_where_memory_is_short_and_the_same_where_requests_fill_it():
    row = ROWS[3]
    for lengths, low, high in (("trace", 2.0, 20.0), ("full", 0.95, 1.05)):
        setting = Setting("70b", SETTINGS[1].hardware, LLAMA_70B, lengths=lengths)
        requests = requests_of(row, lengths)
        paged, contiguous = (serve(setting, requests, row, regime) for regime in ("paged", "contiguous"))
        assert low < paged.tokens_per_second / contiguous.tokens_per_second < high


def test_real_runs_calibrate_the_simulation():
    scale = CalibrationScale(((1, 32), (2, 96), (4, 16)), requests=6, context=400, repeats=1)
    found = calibrate(tiny_model(), scale)
    assert found.steps > 20
    assert [each.name for each in found.held_out] == ["room_for_all", "little_room", "coming"]
    assert all(each.real > 0 and math.isfinite(each.error) for each in found.held_out)
    assert min(found.fit.costs.fixed, found.fit.costs.row, found.fit.costs.token) >= 0
    assert "simulation_error/little_room" in {result.name for result in found.results()}


def test_rows_at_true_lengths_run_in_pages_that_exist():
    row = AppendixRow(1, 6, 256, 1.0, 1.0)
    found = {each.name: each.value for each in appendix_full_true.measure(small_model(), row, TrueScale(1.0, 0.4, 2))}
    assert found["appendix_c_true_row1_concurrency_vs_contiguous"] > 1
    assert found["appendix_c_true_row1_whole_running"] == 6
    assert 0 < found["appendix_c_true_row1_whole_waste_share"] < 0.3  # 192 tokens and some in 4 pages of 64


def test_sequences_over_a_pool_for_an_eighth_of_one_run_from_the_disk(tmp_path):
    row = AppendixRow(5, 2, 1 << 20, None, 1.0)
    found = {each.name: each.value for each in appendix_full_oversized.measure(small_model(), row, 8192, str(tmp_path))}
    assert (found["appendix_c_true_row5_runs"], found["appendix_c_true_row5_refused_without_tiers"]) == (1, 1)
    assert found["appendix_c_true_row5_read_from_disk"] > 0
    assert not list(tmp_path.iterdir())
