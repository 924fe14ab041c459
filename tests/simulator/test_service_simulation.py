"""The simulated server against what must hold for any: everybody is served or refused, and memory is never exceeded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.errors import ConfigError, InvariantError
from kvpager.memory.contiguous import first_fit, longest_run
from kvpager.simulator.service_cost import CostModel, StepWork, fit
from kvpager.simulator.service_memory import REGIMES, PagedMemory, RunMemory, make_memory
from kvpager.simulator.service_simulation import ServerLimits, ServiceRequest, simulate

COSTS = CostModel(fixed=1.0, row=0.1, weights=2.0, token=0.05, kv=0.001, pair=0.0001, sent=0.5)
LONGEST = 64

requests_of = st.lists(
    st.builds(ServiceRequest, st.integers(1, 40), st.integers(1, 25), st.floats(0, 50).map(lambda at: round(at, 2))),
    max_size=12,
)
limits_of = st.builds(ServerLimits, st.integers(1, 6), st.integers(1, 32), st.booleans(), st.sampled_from([1, 3, 4096]))


class Watched:
    """A memory that is checked whenever it is used, and notes the most that was ever reserved."""

    def __init__(self, memory):
        self._memory, self.most = memory, 0

    def __getattr__(self, name):
        self._memory.check()
        self.most = max(self.most, self._memory.reserved)
        return getattr(self._memory, name)


def memory_of(regime, capacity, below=0):
    return make_memory(regime, capacity, page_size=4, longest=LONGEST, below=below)


@settings(max_examples=60, deadline=None)
@given(requests_of, limits_of, st.sampled_from(REGIMES), st.integers(4, 200), st.sampled_from([0, 0, 30]))
def test_everybody_is_served_or_refused_and_tokens_add_up(requests, limits, regime, capacity, below):
    memory = Watched(memory_of(regime, capacity, below))
    found = simulate(requests, memory, COSTS, limits)
    fitting = [each for each in requests if memory_of(regime, capacity, below).can_hold(each.final)]
    assert (found.completed, found.refused) == (len(fitting), len(requests) - len(fitting))
    assert found.generated == sum(each.output for each in fitting)
    once = sum(each.output - 1 if limits.is_prompt_computed else each.final for each in fitting)
    assert found.computed >= once
    if not found.preemptions and not limits.is_prompt_computed:
        assert found.computed == once
    assert memory.most <= capacity + (below if regime == "paged" else 0)
    assert memory.reserved == 0
    assert found.largest_held <= capacity + below
    assert found.peak_running <= limits.max_running
    assert found.mean_held <= found.mean_reserved + 1e-9
    assert bool(fitting) == (found.seconds > 0)


@settings(max_examples=25, deadline=None)
@given(requests_of, st.sampled_from(REGIMES), st.integers(16, 200), st.sampled_from([0, 30]))
def test_many_steps_at_once_are_single_steps(requests, regime, capacity, below):
    single, many = (
        simulate(requests, memory_of(regime, capacity, below), COSTS, ServerLimits(4, 16, steps_at_once=count))
        for count in (1, 4096)
    )
    for name in single.__dataclass_fields__:
        assert getattr(single, name) == pytest.approx(getattr(many, name)), name


def test_one_request_costs_what_the_formula_says():
    found = simulate([ServiceRequest(10, 3)], memory_of("paged", 64), COSTS)
    prompt = 1 + 0.1 + 2 + 0.0001 * 55
    decode = [1 + 0.1 + 2 + 0.001 * length for length in (11, 12)]
    assert found.seconds == pytest.approx(prompt + sum(decode))
    assert (found.steps, found.computed, found.preemptions) == (3, 12, 0)


def test_a_server_without_a_page_to_grow_into_stops_who_came_last():
    requests = [ServiceRequest(8, 20), ServiceRequest(8, 20)]
    found = simulate(requests, memory_of("paged", 40), COSTS)
    assert found.preemptions == 1
    assert found.completed == 2
    assert simulate(requests, memory_of("paged", 80), COSTS).preemptions == 0


def test_reserving_the_longest_runs_fewer_at_once_and_wastes_more():
    requests = [ServiceRequest(8, 8)] * 20
    found = {regime: simulate(requests, memory_of(regime, 256), COSTS) for regime in REGIMES}
    assert found["contiguous"].peak_running == 256 // LONGEST
    assert found["paged"].peak_running > 2 * found["contiguous"].peak_running
    assert found["paged"].waste < found["contiguous"].waste
    assert found["contiguous-exact"].peak_running == 256 // 15


def test_what_the_device_does_not_hold_is_sent_for_every_step():
    requests, costs = [ServiceRequest(40, 4)], COSTS
    assert simulate(requests, memory_of("paged", 32), costs).refused == 1
    found = simulate(requests, memory_of("paged", 32, below=32), costs)
    assert found.completed == 1
    assert found.sent_tokens == sum(length - 32 for length in (40, 41, 42, 43))


def test_first_fit_leaves_holes_that_nobody_fits_into_until_neighbours_join():
    memory = RunMemory(30, None)
    assert [memory.admit(key, 1, 10, 0) for key in range(4)] == [True, True, True, False]
    memory.release(0, 10)
    memory.release(2, 10)
    assert (memory.largest_free, memory.admit(4, 1, 20, 0)) == (10, False)
    memory.release(1, 10)
    assert memory.admit(5, 1, 20, 0)
    with pytest.raises(InvariantError, match="ended in a run of 20"):
        memory.release(5, 21)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=30))
def test_runs_lie_where_the_real_allocator_puts_them(operations):
    """Against the engine's first fit over a bitmap of blocks (memory/contiguous.py)."""
    memory, is_free, taken = RunMemory(32, None), np.ones(32, np.bool_), {}
    for key, (is_start, size) in enumerate(operations):
        if is_start:
            start = first_fit(is_free, size)
            assert memory.admit(key, 1, size, 0) == (start is not None)
            if start is not None:
                taken[key] = (start, size)
                is_free[start : start + size] = False
        elif taken:
            gone = sorted(taken)[size % len(taken)]
            start, length = taken.pop(gone)
            memory.release(gone, length)
            is_free[start : start + length] = True
        memory.check()
        assert (memory.largest_free, memory.reserved) == (longest_run(is_free), int((~is_free).sum()))


def test_coefficients_are_found_again_and_never_negative():
    draw = np.random.default_rng(0)
    works = [StepWork(*each) for each in draw.integers(1, 1000, (40, 4)).astype(float).tolist()]
    works += [StepWork(rows, rows, 100.0 * rows) for rows in (1.0, 2.0, 4.0, 8.0)]
    true = CostModel(fixed=5e-3, row=1e-5, weights=8 * 2e-4, token=2e-4, kv=3e-7, pair=4e-8)
    found = fit(works, [float(true.seconds(work)) for work in works])
    assert found.error < 1e-6
    for name in ("fixed", "row", "weights", "token", "kv", "pair"):
        assert getattr(found.costs, name) == pytest.approx(getattr(true, name), rel=1e-3), name
    shrinking = fit(works, [1 / (1 + work.tokens) for work in works]).costs
    assert min(shrinking.fixed, shrinking.row, shrinking.token, shrinking.kv, shrinking.pair) >= 0


def test_wrong_input_is_named():
    with pytest.raises(ConfigError, match="needs a prompt"):
        simulate([ServiceRequest(0, 1)], memory_of("paged", 64), COSTS)
    with pytest.raises(ConfigError, match="hold no page"):
        PagedMemory(3, 4)
    with pytest.raises(ConfigError, match="unknown allocation 'buddy'"):
        memory_of("buddy", 64)
    with pytest.raises(ConfigError, match="at least 6"):
        fit([], [])
