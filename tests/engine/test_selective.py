"""Requests that attend selectively: the same answer wherever their pages lie, named, and no trouble to others."""

from pathlib import Path

import pytest

from kvpager import native
from kvpager.config.attend import Attend, Selective, describe
from kvpager.engine import Engine, Request, Sampling
from kvpager.engine.selection import NO_SELECTION, Selection
from tests.engine.determinism import Recorder
from tests.engine.oversized import (
    NEW,
    PAGE,
    answer,
    assert_nothing_left,
    failing_reads,
    model,
    prompt_of,
    steps,
    tiers_below,
)

pytestmark = pytest.mark.skipif(native.module() is None, reason=native.why_not())
SAMPLING = Sampling(max_tokens=16)
BUDGET = Selective(budget=48, sinks=4, recent=12)
LENGTH = 420


def small(tmp_path: Path, kind: str) -> Engine:
    """A pool that holds half of what one request needs."""
    return Engine(model(), tiers=tiers_below(kind, tmp_path, 400), num_blocks=60, page_size=PAGE, deterministic=True)


def run(engine: Engine, attend: Attend) -> tuple[Request, Recorder]:
    recorder = Recorder()
    with recorder.rows_of(engine):
        request = engine.submit(prompt_of(3, LENGTH), SAMPLING, attend=attend)
        steps(engine, [request])
    return request, recorder


@pytest.mark.parametrize("kind", ["host", "disk", "remote"])
def test_the_answer_does_not_depend_on_where_pages_lie(kind: str, tmp_path: Path) -> None:
    with Engine(model(), num_blocks=200, page_size=PAGE, deterministic=True) as engine:
        expected, rows = run(engine, BUDGET)
    with small(tmp_path, kind) as engine:
        found, found_rows = run(engine, BUDGET)
        (done,) = found.completions()
        assert done.token_ids == expected.completions()[0].token_ids
        assert found_rows.rows[found.branches[0].key] == rows.rows[expected.branches[0].key]
        assert (done.is_oversized, done.attention) == (True, describe(BUDGET))
        shown = engine.statistics()
        assert shown.approximate_requests == {describe(BUDGET): 1}
        assert shown.selection == Selection(done.selection.steps, done.selection.skipped)  # its memory is gone with it
        assert (done.selection.steps, done.selection.digest_bytes > 0) == (SAMPLING.max_tokens - 1, True)
        assert 0.1 < (done.selection.skipped_mass or 0) < 0.99  # 12 of 105 pages and more
        assert (done.selection.kept_row_bytes > 0) == (kind != "host")  # host memory is read in place
        assert expected.completions()[0].selection.skipped_mass == done.selection.skipped_mass
        assert_nothing_left(engine)


def test_all_pages_selected_give_the_bits_of_exact_attention() -> None:
    with Engine(model(), num_blocks=200, page_size=PAGE, deterministic=True) as engine:
        whole, rows = run(engine, Selective(mass=1.0, sinks=4, recent=4))
        part, part_rows = run(engine, BUDGET)
    expected = answer(3, LENGTH)
    assert list(whole.completions()[0].token_ids[:NEW]) == expected.tokens
    assert expected.rows.items() <= rows.rows[whole.branches[0].key].items()
    assert not expected.rows.items() <= part_rows.rows[part.branches[0].key].items()


def test_neighbours_and_later_requests_see_nothing_of_it() -> None:
    with Engine(model(), num_blocks=400, page_size=PAGE, deterministic=True) as engine:
        selective = engine.submit(prompt_of(3, LENGTH), SAMPLING, attend=BUDGET)
        beside = engine.submit(prompt_of(4, 100), SAMPLING)
        steps(engine, [selective, beside])
        assert list(beside.completions()[0].token_ids[:NEW]) == answer(4, 100).tokens
        (done,) = selective.completions()
        again = engine.submit([*prompt_of(3, LENGTH), *done.token_ids], SAMPLING)
        steps(engine, [again])
        assert again.completions()[0].prefix_tokens <= LENGTH  # what it generated is nobody's prefix
        assert again.completions()[0].attention == "exact"
        assert (again.completions()[0].selection, beside.completions()[0].selection) == (NO_SELECTION, NO_SELECTION)


def test_lost_pages_are_computed_again(tmp_path: Path) -> None:
    with small(tmp_path, "disk") as engine, failing_reads(engine, lambda n: "error" if n == 150 else "") as spoilt:
        request, _ = run(engine, BUDGET)
        assert spoilt == [150]
        (done,) = request.completions()
        assert len(done.token_ids) == SAMPLING.max_tokens
        assert done.attention == describe(BUDGET)
        assert_nothing_left(engine)


def test_a_preempted_request_gives_the_answer_of_one_that_was_not() -> None:
    """What it generated was computed selectively, and is so again, token by token."""
    found, recorders = [], [Recorder(), Recorder()]
    for recorder, preempted_at in zip(recorders, (None, 7), strict=True):
        with Engine(model(), num_blocks=200, page_size=PAGE) as engine, recorder.rows_of(engine):
            request = engine.submit(prompt_of(3, LENGTH), SAMPLING, attend=BUDGET)
            while not request.is_finished:
                engine.step()
                (branch,) = request.branches
                if len(branch.output) == preempted_at and not branch.preemptions:
                    engine._queues.preempt(branch)
            found.append(request.completions()[0])
    assert [done.preemptions for done in found] == [0, 1]
    assert found[0].token_ids == found[1].token_ids
    assert found[1].selection.steps == found[0].selection.steps + 6  # those that were computed again
