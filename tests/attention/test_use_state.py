"""Measured use of pages under exact attention: what it finds, what it costs, what it leaves alone."""

import numpy as np
import pytest
import torch

from kvpager import KVLayout, LayerSpec
from kvpager.attention import use_state
from kvpager.attention.backend import DEFAULT_OPTIONS
from kvpager.attention.page_view import PageView
from kvpager.attention.use_state import MEASURED_EVERY, UseState
from kvpager.cache.non_resident import NonResidentPages
from kvpager.types import TierKind
from tests.attention.forgetting import Context


def layout_of(layers: int) -> KVLayout:
    return KVLayout(layers, 2, 16, "float32", 4)


def run(context: Context, state: UseState, start: int, stop: int, chunk: int = 1) -> None:
    for at in range(start, stop, chunk):
        assert context.step(state, at, min(stop, at + chunk)) == set()


def use(state: UseState, group: int = 0) -> np.ndarray:
    found = state.page_use(group)
    assert found is not None
    assert found.dtype == np.float32
    assert found.sum() == pytest.approx(1)
    return found


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(layer, position, queries) of every measurement."""
    calls: list[tuple[int, int, int]] = []

    def noted(view, layer, pages, q, position, step, options):  # type: ignore[no-untyped-def]
        calls.append((layer, position, len(q)))
        return original(view, layer, pages, q, position, step, options)

    original = use_state.page_masses
    monkeypatch.setattr(use_state, "page_masses", noted)
    return calls


def test_one_layer_is_measured_as_its_newest_query_attends() -> None:
    context, state = Context(layout_of(1), 60, 4), UseState(layout_of(1))
    assert state.page_use(0) is None
    context.step(state, 0, 60)
    np.testing.assert_allclose(use(state), context.masses((0,), 59, 60) / 4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 3, 16, 20])
def test_a_decode_step_measures_one_layer_in_sixteen_and_each_gets_its_turn(
    layers: int, measured: list[tuple[int, int, int]]
) -> None:
    context, state = Context(layout_of(layers), 100, 2), UseState(layout_of(layers))
    run(context, state, 36, 36 + 3 * MEASURED_EVERY)
    by_layer = np.bincount([layer for layer, _, _ in measured], minlength=layers)
    assert (by_layer == 3).all()
    assert all(queries == 1 for _, _, queries in measured)
    by_step = np.bincount([position for _, position, _ in measured])
    assert by_step.max() <= -(-layers // MEASURED_EVERY)


def test_a_step_of_a_prompt_measures_one_layer_by_its_last_query(measured: list[tuple[int, int, int]]) -> None:
    context, state = Context(layout_of(3), 70, 2), UseState(layout_of(3))
    run(context, state, 0, 70, chunk=14)
    assert measured == [(0, 13, 1), (1, 27, 1), (2, 41, 1), (0, 55, 1), (1, 69, 1)]


def test_use_follows_the_attention_of_late() -> None:
    context, state = Context(layout_of(1), 200, 4), UseState(layout_of(1))
    run(context, state, 0, 100, chunk=50)
    context.q[:, 100:] = 4 * torch.from_numpy(context.keys[0, 33]).float().repeat_interleave(2, dim=0)
    before = use(state)[33 // 4]
    run(context, state, 100, 200)
    assert use(state).argmax() == 33 // 4
    assert before < 0.5 < use(state)[33 // 4]


def test_new_pages_are_not_known_until_they_are_measured_and_then_as_found() -> None:
    context, state = Context(layout_of(1), 100, 4), UseState(layout_of(1))
    run(context, state, 0, 40, chunk=40)
    run(context, state, 40, 40 + MEASURED_EVERY - 1)
    assert len(use(state)) == 10
    run(context, state, 40 + MEASURED_EVERY - 1, 40 + MEASURED_EVERY)
    expected = context.masses((0,), 55, 56) / 4
    np.testing.assert_allclose(use(state)[10:] / expected[10:], use(state)[10] / expected[10], rtol=1e-4)
    assert 0.5 < use(state)[10] / expected[10] < 2


def test_pages_on_disk_keep_their_share_and_are_not_read() -> None:
    context, state = Context(layout_of(1), 60, 4), UseState(layout_of(1))
    context.step(state, 0, 40)
    before = use(state)
    away = NonResidentPages(
        np.array([TierKind.DISK] * 5 + [TierKind.NONE] * 10, np.uint8),
        np.zeros(15, np.int32),
        np.zeros(15, np.int64),
        np.zeros((15, 1), np.uint64),
        np.zeros(15, bool),
    )
    blocks = np.arange(15, dtype=np.int32)
    blocks[:5] = -1
    for position in range(40, 60):
        view = PageView(
            context.layout, context.arena, 0, 0, position, 1, blocks[: (position + 4) // 4], away, None, None
        )
        state.attended(0, view, context.q[0, position : position + 1], DEFAULT_OPTIONS)
    after = use(state)
    np.testing.assert_allclose(after[:5] / after[0], before[:5] / before[0], rtol=1e-4)
    assert not np.allclose(after[5:10] / after[5], before[5:] / before[5], rtol=1e-2)


def test_groups_with_a_window_are_not_measured(measured: list[tuple[int, int, int]]) -> None:
    layout = KVLayout.mixed([LayerSpec(2, 16), LayerSpec(2, 16, window=8)], dtype="float32", page_size=4)
    context, state = Context(layout, 60, 4), UseState(layout)
    context.step(state, 0, 60)
    assert [layer for layer, _, _ in measured] == [0]
    assert len(use(state, 0)) == 15
    assert state.page_use(1) is None


def test_a_fork_is_measured_on_its_own_and_a_cut_forgets_what_is_behind_it() -> None:
    context, state = Context(layout_of(1), 100, 4), UseState(layout_of(1))
    context.step(state, 0, 60)
    twin, before = state.forked(), use(state)
    run(context, twin, 60, 100)
    assert use(state).tolist() == before.tolist()
    assert len(use(twin)) > 20
    twin.cut(41)
    assert len(use(twin)) == 11


def test_it_is_exact() -> None:
    state = UseState(layout_of(1))
    assert (state.description, state.is_exact) == ("exact", True)
