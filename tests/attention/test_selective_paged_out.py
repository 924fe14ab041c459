"""Selective attention to pages that have no block: answers as of resident ones, and only what is needed is read."""

from typing import Any

import numpy as np
import pytest
import torch

from kvpager import KVLayout, native
from kvpager.attention import LayerOptions
from kvpager.attention.cpu import CpuBackend
from kvpager.attention.selective import SelectiveState
from kvpager.config.attend import Selective
from kvpager.errors import PagesLost
from kvpager.types import TierKind
from tests.attention.paged_out import World

pytestmark = pytest.mark.skipif(native.module() is None, reason=native.why_not())
BUDGET = Selective(budget=96, sinks=16, recent=32)
OPTIONS = LayerOptions(sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))


def world(settings: Selective = BUDGET, **change: Any) -> World:
    layout = KVLayout(layers=2, kv_heads=2, head_dim=64, dtype="bfloat16", page_size=16)
    made = World(**{"layout": layout, "lengths": [500], "queries": [1], "query_heads": 4, "options": OPTIONS, **change})
    made.states = tuple(SelectiveState(made.layout, settings) for _ in made.lengths)
    return made


def everything(made: World) -> None:
    """Pages out of all kinds of places; some stay."""
    pages = made.full_pages(0)
    for at, (tier, in_place) in enumerate([(TierKind.DISK, False), (TierKind.HOST, True), (TierKind.REMOTE, False)]):
        made.page_out(0, 0, pages[at::4], tier, in_place)


@pytest.mark.parametrize("settings", [BUDGET, Selective(mass=0.7, sinks=16, recent=16)], ids=str)
def test_the_answer_is_that_of_the_resident_pages(settings: Selective) -> None:
    resident, away = world(settings), world(settings)
    everything(away)
    expected, found = resident.run(CpuBackend()), away.run(CpuBackend())
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    exact = World(away.layout, [500], [1], 4, OPTIONS).run(CpuBackend())
    assert not torch.equal(found[0], exact[0])


def test_only_selected_pages_are_read_and_each_once() -> None:
    made = world()
    made.page_out(0, 0, made.full_pages(0)[2:-3], TierKind.DISK)
    first = made.run(CpuBackend())
    assert len(made.window.fetched) == 4  # of each layer: digests of all, then what was selected
    made.window.fetched.clear()
    assert all(torch.equal(one, other) for one, other in zip(made.run(CpuBackend()), first, strict=True))
    assert not made.window.fetched
    made.q = [q.flip(1) for q in made.q]
    made.run(CpuBackend())
    assert 1 <= len(made.window.fetched) <= 2  # one request a layer
    for request in made.window.fetched:
        assert len(request.pages) <= 2 * (96 // 16)
        assert len(set(request.pages.tolist())) == len(request.pages)
    touched = made.step.touched
    assert touched is not None
    assert touched.parts[0] == sum(len(request.pages) for request in made.window.fetched)
    assert touched.bytes[0] == sum(len(request.pages) * request.size for request in made.window.fetched)
    use = made.states[0].page_use(0)
    assert set(np.flatnonzero(use).tolist()) >= {page for each in made.window.fetched for page in each.pages.tolist()}


@pytest.mark.parametrize("room", [1, 3, 40])
def test_a_small_window_takes_several_turns_and_keeps_little(room: int) -> None:
    resident, away = world(), world()
    everything(away)
    away.window.num_bytes = 4 * room * (8192 + 8192)  # parts a turn
    backend = CpuBackend()
    for turn in range(4):
        for each in (resident, away):
            each.q = [q.roll(turn, 1) for q in each.q]
        expected, found = resident.run(backend), away.run(backend)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert 0 < away.states[0].num_kept_bytes <= away.window.num_bytes
    requests = [request for stream in away.window.streams for request in stream.served] + away.window.fetched
    assert max(len(request.pages) for request in requests) <= room
    assert away.window.pace.breaths >= 10 / room


def test_pages_that_cant_be_read_are_lost_and_named() -> None:
    resident, made = world(), world()
    pages = made.full_pages(0)[2:-3]
    made.page_out(0, 0, pages, TierKind.DISK)
    slots = made.non_resident[0, 0].slot
    broken = {(TierKind.DISK, int(slots[page]), 1) for page in pages}
    for turn in range(2):  # when digests are made, and when pages are selected
        made.window.broken = broken if turn else {(TierKind.DISK, int(slots[7]), 1)}
        with pytest.raises(PagesLost) as lost:
            made.run(CpuBackend())
        assert lost.value.pages.keys() == {(100, 0)}
        assert set(lost.value.pages[100, 0]) <= set(pages.tolist() if turn else [7])
        made.window.broken = set()
        expected, found = resident.run(CpuBackend()), made.run(CpuBackend())
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        for each in (resident, made):
            each.q = [q.flip(1) for q in each.q]


def test_a_prompt_leaves_what_lies_away_to_the_first_selective_step() -> None:
    made = world(lengths=[500], queries=[100])
    made.page_out(0, 0, made.full_pages(0)[2:10], TierKind.DISK)
    made.page_out(0, 0, made.full_pages(0)[10:12], TierKind.HOST, in_place=True)
    made.run(CpuBackend())
    digests = made.states[0]._layers[0].digests
    assert digests.missing(31).tolist() == list(range(2, 10))
    assert not made.window.fetched


def test_neighbours_attend_exactly() -> None:
    made = world(lengths=[500, 300], queries=[1, 1])
    made.states = (made.states[0], None)
    everything(made)
    exact = World(made.layout, [500, 300], [1, 1], 4, OPTIONS).run(CpuBackend())
    found = made.run(CpuBackend())
    assert torch.equal(found[0][1], exact[0][1])
    assert not torch.equal(found[0][0], exact[0][0])


def test_without_kernels_the_same_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made, slow = world(), world()
    for each in (made, slow):
        everything(each)
    expected = made.run(CpuBackend())
    backend = CpuBackend()
    monkeypatch.setattr(native, "module", lambda: None)
    found = slow.run(backend)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-2)
    pages = [[request.pages.tolist() for request in each.window.fetched] for each in (made, slow)]
    assert pages[0] == pages[1]
