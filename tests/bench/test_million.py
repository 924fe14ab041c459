"""``kvpager bench million`` with a short range: all figures are there, and paging changes no token."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from kvpager import native
from kvpager.bench import million, million_run
from kvpager.bench.million_rate import PrefillRate
from kvpager.bench.million_scale import QUICK
from kvpager.bench.million_served import Served
from kvpager.engine import Engine
from kvpager.errors import InvariantError
from tests.tiny_model import tiny_model

TINY = replace(
    QUICK,
    context=4096,
    page_size=16,
    sequences=2,
    budget=256,
    head_seconds=0.2,
    tail_seconds=0.2,
    exact_tokens=3,
    selective_tokens=3,
    selective_tokens_each=2,
    check_context=2048,
)


def small_model() -> LlamaForCausalLM:
    return tiny_model(max_position_embeddings=TINY.context).to(torch.bfloat16)


needs_native = pytest.mark.skipif(native.module() is None, reason=f"no native kernels: {native.why_not()}")


def test_what_a_prompt_takes_grows_with_its_square() -> None:
    rate = PrefillRate(linear=1e-3, quadratic=1e-6)
    assert rate.seconds(1000) == pytest.approx(2.0)
    assert rate.seconds(1000, behind=10_000) == pytest.approx(1000 * (1e-3 + 1e-6 * 21_000))
    whole = rate.seconds(3000)
    assert rate.seconds(1000) + rate.seconds(2000, behind=1000) == pytest.approx(whole)


def test_it_is_found_from_two_prompts() -> None:
    given = PrefillRate(linear=2e-3, quadratic=3e-6)
    found = PrefillRate.of((1024, given.seconds(1024)), (4096, given.seconds(4096)))
    assert (found.linear, found.quadratic) == (pytest.approx(2e-3), pytest.approx(3e-6))
    assert PrefillRate.of((10, 1.0), (20, 1.5)).quadratic == 0.0  # noise


def test_no_more_is_computed_than_fits_into_the_time() -> None:
    rate = PrefillRate(linear=1e-3, quadratic=0.0)
    assert rate.fitting(1.0, 0, [256, 512, 1024]) == 512
    assert rate.fitting(0.0, 0, [256, 512, 1024]) == 256


@needs_native
@pytest.mark.slow
def test_every_figure_is_there_and_paging_changes_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million_run, "_RATE_PROMPTS", (64, 256))
    found = {r["name"]: r["value"] for r in million.run_with(small_model(), TINY, str(tmp_path))["results"]}
    assert {"million_page_table_bytes", "million_peak_rss", "million_disk", "million_minutes"} <= set(found)
    for phase in ("exact", "selective", "exact_together", "selective_together"):
        assert found[f"million_decode_rate/{phase}"] > 0
        assert found[f"million_major_faults/{phase}"] > 0
        assert math.isfinite(found[f"million_stalled/{phase}"])
    assert found["million_pages"] == TINY.context // TINY.page_size - 1  # the last one is for what comes
    assert not list(tmp_path.iterdir())


@needs_native
@pytest.mark.slow
def test_tokens_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = million_run.MillionRun(small_model(), TINY, tmp_path)
    served = million_run.serve
    calls = []

    def changed(engine: Engine, prompts: list[list[int]], tokens: int) -> Served:
        calls.append(engine)
        found = served(engine, prompts, tokens)
        return found if len(calls) < 4 else replace(found, outputs=[[0]])

    monkeypatch.setattr(million_run, "serve", changed)
    with pytest.raises(InvariantError, match="other tokens"):
        run.check()
