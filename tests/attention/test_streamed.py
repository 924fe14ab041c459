"""Attention over pages that are not resident: the bits of attention over resident ones, in every shape."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from kvpager import native
from kvpager.attention.backend import AttentionBackend, LayerOptions
from kvpager.attention.page_list import attend_pages
from kvpager.attention.page_view import PageView
from kvpager.attention.reference import ReferenceBackend
from kvpager.attention.torch_batched import TorchBackend
from kvpager.errors import ConfigError, PagesLost
from kvpager.memory.layout import KVLayout, LayerSpec
from kvpager.types import TierKind
from tests.attention.oracle import attention as oracle
from tests.attention.paged_out import World

if native.module() is None:
    pytest.skip(f"no native kernels: {native.why_not()}", allow_module_level=True)

from kvpager.attention.cpu import CpuBackend

SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])
BACKENDS: list[Callable[[], AttentionBackend]] = [CpuBackend, TorchBackend, ReferenceBackend]


def all_on_disk(world: World, s: int, group: int) -> None:
    world.page_out(s, group, world.full_pages(s), TierKind.DISK)


def every_second(world: World, s: int, group: int) -> None:
    world.page_out(s, group, world.full_pages(s)[::2], TierKind.REMOTE)


def most_in_place(world: World, s: int, group: int) -> None:
    pages = world.full_pages(s)
    world.page_out(s, group, pages[: len(pages) * 3 // 4], TierKind.HOST, in_place=True)


def anywhere(world: World, s: int, group: int) -> None:
    pages = world.full_pages(s)
    where = np.random.default_rng(s).integers(0, 4, len(pages))
    world.page_out(s, group, pages[where == 1], TierKind.DISK)
    world.page_out(s, group, pages[where == 2], TierKind.HOST, in_place=True)
    world.page_out(s, group, pages[where == 3], TierKind.REMOTE)


PATTERNS = [all_on_disk, every_second, most_in_place, anywhere]


def check_same_bits(
    world: World, pattern: Callable[[World, int, int], None], make: Callable[[], AttentionBackend] = CpuBackend
) -> None:
    expected = world.run(make())
    assert all(out.isfinite().all() for out in expected)
    for s, length in enumerate(world.lengths):
        for group in range(world.layout.num_groups if length > 100 else 0):
            pattern(world, s, group)
    found = world.run(make())
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for stream in world.window.streams:
        assert not stream.is_open
        assert stream.is_exhausted


def random_world(seed: int, lengths: list[int], queries: list[int]) -> World:
    rng = np.random.default_rng(seed)
    windows = [None, None, None] if seed % 2 else [None, int(rng.choice([70, 2500])), None]
    layout = KVLayout.mixed(
        [LayerSpec(2, 16, window) for window in windows],
        ["float32", "bfloat16", "float16"][seed % 3],
        [4, 16, 24, 64][seed % 4],
    )
    softcap, sinks = [None, 20.0][rng.integers(2)], [None, SINKS][rng.integers(2)]
    return World(layout, lengths, queries, 4, LayerOptions(softcap=softcap, sinks=sinks), seed=seed)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(4))
def test_decode_beside_plain_sequences(seed: int, pattern: Callable[[World, int, int], None]) -> None:
    check_same_bits(random_world(seed, [4500, 60, 2100, 130], [1, 2, 3, 1]), pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("seed", range(4, 8))
def test_prefill_beside_plain_sequences(seed: int, pattern: Callable[[World, int, int], None]) -> None:
    check_same_bits(random_world(seed, [4300, 60, 70, 2170], [45, 2, 70, 70]), pattern)


def test_pages_of_one_token() -> None:
    check_same_bits(World(KVLayout(1, 2, 16, "float32", 1), [2300], [1], 4), anywhere)


@pytest.mark.parametrize("make", [TorchBackend, ReferenceBackend])
@pytest.mark.parametrize("seed", [1, 4])
def test_the_slow_versions_gather_from_anywhere(seed: int, make: Callable[[], AttentionBackend]) -> None:
    check_same_bits(random_world(seed, [2200, 60, 130], [1, 1, 20]), anywhere, make)


def test_layers_in_any_order() -> None:
    world = World(KVLayout(5, 2, 16, "float32", 16), [2300, 150], [1, 3], 4)
    expected = world.run(CpuBackend())
    for s in range(2):
        anywhere(world, s, 0)
    assert all(torch.equal(*pair) for pair in zip(world.run(CpuBackend(), [3, 1, 2, 0, 4]), expected, strict=True))
    assert [stream.served[0].layer_index for stream in world.window.streams] == [3, 1, 0, 4]
    assert not any(stream.is_open for stream in world.window.streams)


def test_one_stream_reads_what_a_step_needs_in_order() -> None:
    world = World(KVLayout(2, 2, 16, "float32", 16), [4500, 60, 2300], [1, 1, 1], 4)
    all_on_disk(world, 0, 0)
    world.page_out(2, 0, np.arange(5, 9), TierKind.DISK)
    world.run(CpuBackend())
    (stream,) = world.window.streams
    served = [(request.layer_index, request.pages[0], len(request.pages)) for request in stream.served]
    layer = [(0, 128), (128, 128), (256, 25), (5, 4)]
    assert served == [(number, first, count) for number in range(2) for first, count in layer]
    assert not world.window.fetched
    touched = world.step.touched
    assert touched is not None
    assert touched.parts.tolist() == [2 * 281, 0, 2 * 4]
    assert touched.bytes.tolist() == [2 * 281 * 4096, 0, 2 * 4 * 4096]
    assert touched.seconds.tolist() == [2 * 3 * 0.5, 0, 2 * 0.5]
    assert world.window.pace.breaths == 2 * (3 + 2)


def test_pages_in_place_are_read_without_a_stream() -> None:
    world = World(KVLayout(2, 2, 16, "float32", 16), [4500], [1], 4)
    most_in_place(world, 0, 0)
    world.run(CpuBackend())
    assert world.window.streams == []
    assert world.step.touched is not None
    assert world.step.touched.parts.tolist() == [2 * 210]
    assert world.window.pace.breaths == 2


def test_many_queries_breathe_within_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaths(products_at_once: int) -> int:
        monkeypatch.setattr("kvpager.attention.segments._PRODUCTS_AT_ONCE", products_at_once)
        world = World(KVLayout(1, 8, 16, "float32", 16), [2500], [90], 16)
        check_same_bits(world, all_on_disk)
        return world.window.pace.breaths

    assert breaths(1 << 40) == 2
    assert breaths(1) > 2


def test_a_step_of_plain_sequences_is_planned_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(KVLayout(1, 2, 16, "float32", 16), [200, 30], [1, 2], 4, states=(None, None))
    expected = world.run(CpuBackend())
    monkeypatch.setattr("kvpager.attention.cpu.StreamedPlan", None)
    assert torch.equal(world.run(CpuBackend())[0], expected[0])
    all_on_disk(world, 0, 0)
    with pytest.raises(TypeError):
        world.run(CpuBackend())


@pytest.mark.parametrize("make", BACKENDS)
def test_a_wrong_byte_of_a_part_changes_the_answer(make: Callable[[], AttentionBackend]) -> None:
    world = World(KVLayout(1, 2, 16, "float32", 16), [2200, 60], [1, 1], 4)
    all_on_disk(world, 0, 0)
    right = world.run(make())[0]
    world.window.pages[TierKind.DISK, 1][3] ^= 0x40
    wrong = world.run(make())[0]
    assert not torch.equal(wrong[0], right[0])
    assert torch.equal(wrong[1], right[1])


# -- pages that can't be read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", BACKENDS)
def test_lost_pages_are_named_by_row_and_group(make: Callable[[], AttentionBackend]) -> None:
    world = World(KVLayout(2, 2, 16, "float32", 16), [90, 4500], [1, 1], 4)
    expected = world.run(make())
    all_on_disk(world, 1, 0)
    rest = world.non_resident[0, 1]
    for page in (3, 50, 130):  # the last one in another segment, which is not reached
        world.window.broken.add((TierKind.DISK, int(rest.slot[page]), 1))
    with pytest.raises(PagesLost, match="2 non-resident pages can't be read") as caught:
        world.run(make())
    assert caught.value.pages == {(101, 0): [3, 50]}
    assert "slot" in str(caught.value.cause)
    assert not any(stream.is_open for stream in world.window.streams)
    world.window.broken.clear()
    assert all(torch.equal(*pair) for pair in zip(world.run(make()), expected, strict=True))


def test_lost_pages_of_all_tiers_of_a_segment_are_collected() -> None:
    world = World(KVLayout(1, 2, 16, "float32", 16), [600], [1], 4)
    world.page_out(0, 0, np.array([1, 2]), TierKind.DISK)
    world.page_out(0, 0, np.array([3, 4]), TierKind.REMOTE)
    rest = world.non_resident[0, 0]
    world.window.broken = {(TierKind(rest.tier[page]), int(rest.slot[page]), 0) for page in (2, 3)}
    with pytest.raises(PagesLost) as caught:
        world.run(CpuBackend())
    assert caught.value.pages == {(100, 0): [2, 3]}


def test_an_abandoned_step_drops_what_was_read_ahead() -> None:
    world = World(KVLayout(3, 2, 16, "float32", 16), [2300], [1], 4)
    all_on_disk(world, 0, 0)
    world.run(CpuBackend(), [0])  # and the plan is gone
    assert [stream.is_open for stream in world.window.streams] == [False]

    def abandon() -> None:
        raise KeyboardInterrupt

    world.window.pace.breathe = abandon  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.run(CpuBackend())
    assert [stream.is_open for stream in world.window.streams] == [False, False]


@pytest.mark.parametrize("make", BACKENDS)
def test_what_cannot_be_read_is_refused(make: Callable[[], AttentionBackend]) -> None:
    world = World(KVLayout(1, 2, 16, "int8", 16), [200], [1], 4)
    world.run(make())
    all_on_disk(world, 0, 0)
    with pytest.raises(ConfigError, match="int8 layout: keep its sequences resident"):
        world.run(make())
    world = World(KVLayout(1, 2, 16, "float32", 16), [200], [1], 4)
    all_on_disk(world, 0, 0)
    world.has_window = False
    with pytest.raises(ConfigError, match="no staging window"):
        world.run(make())


# -- states, and pages that are gone for good --------------------------------------------------------------------------


@dataclass
class State:
    """Attends its own way in ``own`` layers: to ``pages`` only."""

    own: tuple[int, ...] = ()
    pages: tuple[int, ...] = ()
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    description: str = "a test's"
    is_exact: bool = True

    def attend(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> Tensor | None:
        self.calls.append(("attend", layer, len(q)))
        if layer not in self.own:
            return None
        return attend_pages(view, layer, q, np.array(self.pages), options)[0].to(q.dtype)

    def attended(self, layer: int, view: PageView, q: Tensor, options: LayerOptions) -> None:
        self.calls.append(("attended", layer, len(q)))


def answer(world: World, layer: int, s: int, pages: np.ndarray) -> np.ndarray:
    """In fp64, of one new token that attends to ``pages``; no window."""
    size, length = world.layout.page_size, world.lengths[s]
    at = (pages[:, None] * size + np.arange(size)).reshape(-1)
    k, v = (half[at[at < length]].double().numpy() for half in world.rows[layer][s])
    q = world.q[layer][world.offset(s)][None].double().numpy()
    sinks = None if world.options.sinks is None else world.options.sinks.double().numpy()
    return oracle(q, k, v, len(k) - 1, None, world.options.scale, world.options.softcap, sinks)[0]


@pytest.mark.parametrize("make", BACKENDS)
def test_states_take_part(make: Callable[[], AttentionBackend]) -> None:
    states = (State(own=(1, 2), pages=(0, 3, 130, 140)), None, State())
    world = World(KVLayout(4, 2, 16, "float32", 16), [2250, 60, 130], [1, 1, 1], 4, LayerOptions(sinks=SINKS))
    expected = world.run(make())
    world.states = states
    anywhere(world, 0, 0)
    found = world.run(make())
    for layer in range(4):
        assert torch.allclose(found[layer][1:], expected[layer][1:], atol=1e-5)
        if layer in (1, 2):
            right = answer(world, layer, 0, np.array([0, 3, 130, 140]))
            assert np.abs(found[layer][0].numpy() - right).max() < 1e-5
        else:
            assert torch.allclose(found[layer][0], expected[layer][0], atol=1e-5)
    order = [("attend", 0, 1), ("attended", 0, 1), ("attend", 1, 1), ("attend", 2, 1), ("attend", 3, 1)]
    assert states[0].calls == [*order, ("attended", 3, 1)]
    assert states[2].calls == [(name, layer, 1) for layer in range(4) for name in ("attend", "attended")]
    if make is CpuBackend:
        assert [stream.served[0].layer_index for stream in world.window.streams] == [0, 3]
        assert {request.layer_index for request in world.window.fetched} == {1, 2}


def test_nothing_is_read_ahead_for_layers_that_a_state_attends_to_itself() -> None:
    layout = KVLayout.mixed([LayerSpec(2, 16, window) for window in (64, None, 64, None)], "float32", 16)
    world = World(layout, [2250], [1], 4, states=(State(own=(1, 3), pages=(0, 140)),))
    full = layout.places[1].group
    world.page_out(0, full, world.full_pages(0), TierKind.DISK)
    world.run(CpuBackend())
    assert world.window.streams == []
    assert len(world.window.fetched) == 2
    world.states = (State(),)
    world.run(CpuBackend())
    assert [request.layer_index for stream in world.window.streams for request in stream.served] == [0, 0, 1, 1]


@pytest.mark.parametrize("make", BACKENDS)
@pytest.mark.parametrize("queries", [1, 30])
def test_pages_that_are_gone_for_good_are_not_attended_to(queries: int, make: Callable[[], AttentionBackend]) -> None:
    def world(gone: bool) -> World:
        made = World(KVLayout(1, 2, 16, "float32", 16), [4500, 90], [queries, 1], 4, states=(State(), None))
        if gone:
            made.give_back(0, 0, np.arange(0, 276, 2))
        return made

    resident, paged = world(True), world(True)
    expected = resident.run(make())[0]
    if queries == 1:
        kept = np.setdiff1d(np.arange(282), np.arange(0, 276, 2))
        assert np.abs(expected[0].numpy() - answer(resident, 0, 0, kept)).max() < 1e-5
    whole = world(False).run(make())[0]
    assert not torch.allclose(whole[:queries], expected[:queries])
    assert torch.equal(whole[queries:], expected[queries:])
    paged.page_out(0, 0, np.arange(1, 270, 2), TierKind.DISK)
    assert torch.equal(paged.run(make())[0], expected)


# -- lists of pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [1, 3, 30])
def test_lists_of_pages_agree_with_the_slow_version(queries: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = LayerOptions(softcap=20.0, sinks=SINKS)
    world = World(KVLayout(1, 2, 16, dtype, 16, window=2000), [4500], [queries], 4, options)
    world.run(CpuBackend())
    anywhere(world, 0, 0)
    view = PageView.of(world.batch(), world.arena, 0, 0)
    for pages in (np.array([0, 1, 2]), np.arange(150, 282, 3), np.array([281])):
        out, lse = attend_pages(view, 0, world.q[0], pages, options)
        with monkeypatch.context() as slowly:
            slowly.setattr("kvpager.native.module", lambda: None)
            slow, slow_lse = attend_pages(view, 0, world.q[0], pages, options)
        assert out.dtype == slow.dtype == torch.float32
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        torch.testing.assert_close(out, slow, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(lse, slow_lse, rtol=tolerance, atol=tolerance)


def test_a_list_of_pages_that_no_query_sees_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(KVLayout(1, 2, 16, "float32", 16, window=100), [4500], [1], 4)
    view = PageView.of(world.batch(), world.arena, 0, 0)
    for module in (native.module(), None):
        monkeypatch.setattr("kvpager.native.module", lambda module=module: module)
        out, lse = attend_pages(view, 0, world.q[0], np.array([0, 5]), LayerOptions())
        assert (out == 0).all()
        assert (lse == -torch.inf).all()
