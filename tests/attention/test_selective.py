"""SelectiveState: what it attends to, what it leaves to exact attention, and what it keeps."""

import numpy as np
import pytest
import torch

from kvpager import KVLayout, native
from kvpager.attention import LayerOptions
from kvpager.attention.make_state import make_state
from kvpager.attention.selective import SelectiveState
from kvpager.config.attend import EXACT, Selective, parse_attend
from kvpager.errors import ConfigError
from kvpager.memory.layout import LayerSpec
from tests.attention.selective_case import SelectiveCase

KERNELS = ["native", "slow"] if native.module() is not None else ["slow"]


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "slow":
        monkeypatch.setattr(native, "module", lambda: None)
    return str(request.param)


def layout_of(dtype: str = "float32", page_size: int = 16, head_dim: int = 64) -> KVLayout:
    return KVLayout(layers=2, kv_heads=2, head_dim=head_dim, dtype=dtype, page_size=page_size)


@pytest.mark.parametrize(
    "layout",
    [
        layout_of("bfloat16", 16, 128),
        layout_of("float16", 64, 64),
        layout_of("float32", 16, 64),
        layout_of(head_dim=264),
    ],
    ids=["bf16-16-128", "fp16-64-64", "fp32-16-64", "fp32-16-264"],
)
def test_all_of_the_mass_is_exact_attention(kernels: str, layout: KVLayout) -> None:
    options = LayerOptions(softcap=30.0, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    with SelectiveCase(layout, Selective(mass=1.0, sinks=1, recent=1), options=options) as case:
        assert all(mine is None for _, mine in case.step(400))  # a prompt
        tolerance = 1e-5 if layout.dtype == "float32" else 2e-2
        for _ in range(3):
            for exact, mine in case.step(1):
                assert mine is not None
                assert mine.dtype == exact.dtype
                torch.testing.assert_close(mine, exact, rtol=tolerance, atol=tolerance)
        assert case.state.skipped_mass == 0


def test_a_budget_leaves_pages_out_and_says_how_much(kernels: str) -> None:
    with SelectiveCase(layout_of(), Selective(budget=160, sinks=16, recent=32)) as case:
        case.step(400)
        for exact, mine in case.step(1):
            assert mine is not None
            assert not torch.allclose(mine, exact, rtol=1e-2, atol=1e-3)
        assert case.state.skipped_mass is not None
        assert 0.2 < case.state.skipped_mass < 0.8  # 10 of 26 pages, all alike
        assert case.state.num_digest_bytes > 0


def test_what_the_budget_holds_is_attended_to_exactly() -> None:
    with SelectiveCase(layout_of(), Selective(budget=160, sinks=16, recent=32)) as case:
        case.step(150)
        assert all(mine is None for _, mine in case.step(1))
        case.step(50)
        assert all(mine is not None for _, mine in case.step(1))


def test_layers_with_a_window_attend_exactly() -> None:
    specs = [LayerSpec(2, 64), LayerSpec(2, 64, window=100)]
    with SelectiveCase(KVLayout.mixed(specs, "float32", 16), Selective(budget=64, recent=16)) as case:
        case.step(300)
        (_, full), (_, windowed) = case.step(1)
        assert full is not None
        assert windowed is None


def test_several_tokens_at_once_attend_exactly() -> None:
    with SelectiveCase(layout_of(), Selective(budget=64, recent=16, sinks=16)) as case:
        case.step(300)
        assert all(mine is None for _, mine in case.step(2))
        assert all(mine is not None for _, mine in case.step(1))


def test_a_prompt_is_exact_to_its_last_token() -> None:
    with SelectiveCase(layout_of(), Selective(budget=64, recent=16, sinks=16)) as case:
        case.state = SelectiveState(case.layout, Selective(budget=64, recent=16, sinks=16), prompt_tokens=302)
        case.step(300)
        for expected in (None, None, True):
            assert all((mine is None) == (expected is None) for _, mine in case.step(1))


def test_one_selection_serves_several_steps() -> None:
    with SelectiveCase(layout_of(page_size=4), Selective(budget=64, recent=8, sinks=4, reuse=6)) as case:
        case.step(200)
        seen = []
        for _ in range(7):
            case.step(1)
            selected = case.state._layers[0].selected
            assert selected is not None
            seen.append(selected)
        assert all(each is seen[0] for each in seen[:6])
        assert seen[6] is not seen[0]


def test_page_use_follows_what_is_selected() -> None:
    with SelectiveCase(layout_of(), Selective(budget=96, sinks=16, recent=32)) as case:
        case.step(400)
        assert case.state.page_use(0) is None
        for _ in range(8):
            case.step(1)
        use = case.state.page_use(0)
        assert use is not None
        assert use.sum() == pytest.approx(1)
        assert len(use) == 26
        assert use[0] == use[24] == use.max()  # always in
        assert use.min() < use.max() / 2
        assert len(case.state.pages_to_give_back(0, 420)) == 0


def test_a_fork_goes_its_own_way() -> None:
    with SelectiveCase(layout_of(), Selective(budget=96, sinks=16, recent=32)) as case:
        case.step(400)
        case.step(1)
        other = case.state.forked()
        before = other._layers[0].digests.values(25)[0].copy()
        case.state.cut(100)
        case.state._layers[0].digests._records[:] = 0
        assert np.array_equal(other._layers[0].digests.values(25)[0], before)
        assert other._layers[0].digests.num_covered == 25
        assert case.state._layers[0].digests.num_covered == 6
        assert other.description == case.state.description


def test_after_a_cut_new_pages_get_new_digests(kernels: str) -> None:
    with SelectiveCase(layout_of(), Selective(mass=1.0, sinks=1, recent=1)) as case:
        case.step(300)
        case.cache.truncate(case.seq, 100)
        case.state.cut(100)
        assert all(len(known.digests.missing(6)) == 0 for known in case.state._layers.values())
        case.step(150)
        for exact, mine in case.step(1):
            assert mine is not None
            torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5)
        fresh = SelectiveState(case.layout, Selective(budget=64))
        kept, case.state = case.state, fresh
        case.step(5)
        for layer in range(2):
            a, b = (state._layers[layer].digests.values(15) for state in (kept, fresh))
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_settings_make_a_state_that_says_what_it_does() -> None:
    asked = parse_attend("selective:budget=4096,sinks=64,recent=256")
    state = make_state(layout_of(), asked)
    assert isinstance(state, SelectiveState)
    assert state.description == "selective:budget=4096,sinks=64,recent=256,reuse=1"
    assert not state.is_exact
    assert make_state(layout_of(), EXACT) is None
    with pytest.raises(ConfigError, match="selective attention needs keys in float32"):
        make_state(layout_of("int8"), asked)
