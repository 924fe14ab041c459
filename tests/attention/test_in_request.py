"""In-request eviction: exactly the pages that the plain definition names are given back."""

import numpy as np
import pytest

from kvpager import KVLayout, LayerSpec
from kvpager.attention.in_request import MOST_QUERIES, HeavyHittersState, SinksAndWindowState, SnapKVState
from kvpager.attention.make_state import make_state
from kvpager.attention.states import LayerState
from kvpager.config.attend import EXACT, Attend, HeavyHitters, SinksAndWindow, SnapKV, describe
from tests.attention.forgetting import Context, least, protected

CHUNKS = ([40, 40, 13, *[1] * 30], [70, 1, 1, 5, *[1] * 10], [1] * 60)


def layout_of(page_size: int, layers: int = 2) -> KVLayout:
    return KVLayout(layers, 2, 16, "float32", page_size)


def steps(chunks: list[int]) -> list[tuple[int, int]]:
    stops = np.cumsum(chunks).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("chunks", CHUNKS, ids=len)
@pytest.mark.parametrize("kind", [SinksAndWindow(20, 4), SinksAndWindow(1, 0), SinksAndWindow(33, 17)], ids=describe)
def test_sinks_and_window_keeps_what_holds_the_first_and_the_last_tokens(
    kind: SinksAndWindow, chunks: list[int], page_size: int
) -> None:
    context = Context(layout_of(page_size), sum(chunks), 4)
    state = SinksAndWindowState(context.layout, kind)
    for start, stop in steps(chunks):
        before = context.present(stop)
        kept = protected(context, stop, kind.sinks, kind.window)
        assert context.step(state, start, stop) == set(before) - kept
        assert set(context.present(stop)) <= kept


@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("chunks", CHUNKS, ids=len)
@pytest.mark.parametrize("kind", [HeavyHitters(32, 8, 4), HeavyHitters(50, 17, 0), HeavyHitters(9, 5, 4)], ids=describe)
def test_heavy_hitters_keeps_the_pages_with_the_largest_mass_so_far(
    kind: HeavyHitters, chunks: list[int], page_size: int
) -> None:
    context = Context(layout_of(page_size), sum(chunks), 4)
    state = HeavyHittersState(context.layout, kind)
    masses = np.zeros(context.layout.num_pages(context.length))
    for start, stop in steps(chunks):
        step = -(-(stop - start) // MOST_QUERIES)
        for position in range(stop - 1, start - 1, -step):
            of_query = context.masses((0, 1), position, stop)
            masses[: len(of_query)] += step * of_query
        before = set(context.present(stop))
        may_go = before - protected(context, stop, kind.sinks, kind.recent)
        expected = least(masses, may_go, len(before) - context.layout.num_pages(kind.budget))
        assert context.step(state, start, stop) == expected


@pytest.mark.parametrize("pooling", ["max", "mean"])
@pytest.mark.parametrize("page_size", [4, 16])
@pytest.mark.parametrize("chunks", [[93, 1, 1, 1], [40, 40, 13, 1, 4], [88, 3, 2, 1], [60, 40]], ids=str)
@pytest.mark.parametrize(
    "kind", [SnapKV(32, 8, 4), SnapKV(50, 17, 0), SnapKV(1, 1, 0), SnapKV(500, 4, 4)], ids=describe
)
def test_snapkv_keeps_what_the_end_of_the_prompt_attends_to(
    kind: SnapKV, chunks: list[int], page_size: int, pooling: str
) -> None:
    prompt = 93
    context = Context(layout_of(page_size), sum(chunks), 4)
    state = SnapKVState(context.layout, kind, prompt, pooling)  # type: ignore[arg-type]
    done = False
    for start, stop in steps(chunks):
        expected: set[int] = set()
        if stop >= prompt and not done:
            positions = range(prompt - kind.observe, prompt)
            masses = sum(context.masses((0, 1), position, stop) for position in positions)
            beside = np.pad(masses, 1)
            pooled = [getattr(beside[at : at + 3], pooling)() for at in range(len(masses))]
            pages = set(range(context.layout.num_pages(prompt)))
            excess = len(pages) - context.layout.num_pages(kind.budget)
            expected = least(np.array(pooled), pages - protected(context, prompt, kind.sinks, kind.observe), excess)
            done = True
        assert context.step(state, start, stop) == expected
    assert done


def test_snapkv_gives_nothing_back_until_it_knows_where_the_prompt_ends() -> None:
    context = Context(layout_of(4), 60, 4)
    state = SnapKVState(context.layout, SnapKV(8, 4, 0))
    assert context.step(state, 0, 40) == set()
    state.prompt_tokens = 60
    assert len(context.step(state, 40, 60)) == 13


ALL: list[Attend] = [SinksAndWindow(12, 4), HeavyHitters(16, 8, 4), SnapKV(16, 8, 4)]


def run(context: Context, state: LayerState, chunks: list[int], start: int = 0) -> list[set[int]]:
    return [context.step(state, start + first, start + stop) for first, stop in steps(chunks)]


def state_of(kind: Attend, layout: KVLayout) -> LayerState:
    state = make_state(layout, kind, 50)
    assert state is not None
    return state


@pytest.mark.parametrize("kind", ALL, ids=describe)
def test_groups_with_a_window_are_left_alone_and_not_measured(kind: Attend) -> None:
    mixed = KVLayout.mixed([LayerSpec(2, 16), LayerSpec(2, 16, window=8)], dtype="float32", page_size=4)
    with_window, without = (
        run(Context(layout, 70, 4), state_of(kind, layout), [40, *[1] * 30]) for layout in (mixed, layout_of(4, 1))
    )
    assert any(with_window)
    assert with_window == without


@pytest.mark.parametrize("kind", ALL, ids=describe)
def test_a_fork_goes_on_as_the_first_would_and_leaves_it_alone(kind: Attend) -> None:
    layout = layout_of(4)
    straight = run(Context(layout, 80, 4), state_of(kind, layout), [30, *[1] * 50])
    assert any(straight)
    for at in (30, 41, 60):
        context, state = Context(layout, 80, 4), state_of(kind, layout)
        found = run(context, state, [30, *[1] * (at - 30)])
        other = Context(layout, 80, 4, seed=9)
        other.given_back |= context.given_back
        twin = state.forked()
        run(other, twin, [1] * (80 - at), at)
        assert found + run(context, state, [1] * (80 - at), at) == straight
        assert twin.description == state.description


@pytest.mark.parametrize("kind", ALL, ids=describe)
def test_a_step_that_failed_and_is_repeated_counts_once(kind: Attend) -> None:
    layout = layout_of(4)
    straight, repeated = Context(layout, 80, 4), Context(layout, 80, 4)
    state, other = state_of(kind, layout), state_of(kind, layout)
    for start, stop in steps([30, 12, 12, *[1] * 26]):
        repeated.attend(other, start, stop)
        repeated.attend(other, start, stop)
        assert straight.step(state, start, stop) == repeated.step(other, start, stop)
    assert straight.given_back


@pytest.mark.parametrize("kind", ALL, ids=describe)
def test_pages_that_were_cut_off_are_new_when_they_are_there_again(kind: Attend) -> None:
    layout = layout_of(4)
    context, state = Context(layout, 80, 4), state_of(kind, layout)
    run(context, state, [45])
    kept = context.present(45)
    run(context, state, [20], 45)
    state.cut(45)
    context.given_back = {page for page in context.given_back if page < 12}
    still = [page for page in kept if page not in context.given_back]
    later = run(context, state, [1] * 35, 45)
    assert all(pages <= {*still, *range(12, 20)} for pages in later)
    assert any(pages & set(range(12, 20)) for pages in later) == (not isinstance(kind, SnapKV))


def test_memory_is_bounded_however_long_a_request_runs() -> None:
    context = Context(layout_of(4, layers=1), 3000, 2)
    for kind in (SinksAndWindow(64, 4), HeavyHitters(64, 16, 4)):
        state = make_state(context.layout, kind)
        context.given_back.clear()
        assert state is not None
        most = 0
        for start, stop in steps([200] * 10 + [1] * 1000):
            context.step(state, start, stop)
            most = max(most, len(context.present(stop)))
            assert most <= 18
            assert all(len(held.pages) <= 18 for held in state._held)  # type: ignore[attr-defined]


def test_states_say_what_they_are() -> None:
    for kind in ALL:
        state = make_state(layout_of(4), kind, 10)
        assert state is not None
        assert (state.description, state.is_exact, state.page_use(0)) == (describe(kind), False, None)
    assert make_state(layout_of(4), EXACT) is None
