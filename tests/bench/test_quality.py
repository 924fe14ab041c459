"""Quality of approximate attention: where needles lie, contexts continued in several ways, masses of pages."""

import itertools
import random

import numpy as np
import pytest
import torch

from kvpager.bench import long_text, needle
from kvpager.bench.attention_mass import figures
from kvpager.bench.forked_decode import answers, computed, forced_losses, forked, forked_with, opened
from kvpager.bench.mass_probe import MassProbe
from kvpager.bench.needle_text import needles
from kvpager.config.attend import EXACT, Selective, SinksAndWindow
from kvpager.errors import ConfigError
from tests.tiny_model import CONTEXT, ref, sharp_prompt, tiny_model


def letters(text: str) -> list[int]:
    return [ord(each) for each in text]


def test_needles_lie_at_their_depths_in_one_text() -> None:
    found = list(needles(letters, 4000, 5, seed=1))
    assert [each.depth for each in found] == [1.0, 0.75, 0.5, 0.25, 0.0]
    for each in found:
        assert len(each.context) <= 4000
        inside = "".join(map(chr, each.context[each.at.start : each.at.stop]))
        assert inside.count(each.key) == 2
        assert "".join(map(chr, each.context)).count(each.key) == 2
        assert each.at.start == pytest.approx(each.depth * 3700, abs=250)
    assert len({each.key for each in found}) == 5
    for deep, shallow in itertools.pairwise(found):
        assert deep.context[: shallow.at.start] == shallow.context[: shallow.at.start]


def test_recall_counts_what_exact_attention_found() -> None:
    found = [{"exact": True, "window": False}, {"exact": True, "window": True}]
    assert needle.recall(found, "window") == 0.5
    assert np.isnan(needle.recall([], "window"))


def test_long_text_is_as_long_as_asked() -> None:
    assert len(long_text.long_text(100_000)) == 100_000
    assert long_text.long_text(100_000)[:1000] == long_text.long_text(1000)
    with pytest.raises(ConfigError, match="fewer than"):
        long_text.long_text(10**9)


def test_ways_of_attending_continue_one_context() -> None:
    prompt = sharp_prompt(random.Random(0), 300, 6)
    with opened(tiny_model(), None, 4 * CONTEXT) as parts:
        context = computed(parts, prompt[:-2])
        kinds = (EXACT, Selective(budget=1024), SinksAndWindow(window=16, sinks=0))
        forks = [forked(parts, context, kind) for kind in kinds]
        exact, whole, window = answers(parts, forks, prompt[-2:], 6)
        assert exact == whole == ref(prompt, 6)
        assert window != exact  # what is lost shows
        more = [forked(parts, context, EXACT) for _ in range(2)]
        losses = forced_losses(parts, more, prompt[-2:] + exact[:2])
        assert losses.shape == (2, 3)
        assert torch.equal(losses[0], losses[1])


@pytest.mark.parametrize("page_size", [16, 64])
def test_masses_against_their_definition(page_size: int) -> None:
    prompt = sharp_prompt(random.Random(1), 400, 2)
    kinds = {"small": Selective(budget=128, sinks=16, recent=16), "all": Selective(budget=1024)}
    with opened(tiny_model(), None, 2 * CONTEXT, page_size) as parts:
        probe = MassProbe(parts.limits.layout, kinds)
        context = computed(parts, prompt[:-2])
        forced_losses(parts, [forked_with(context, probe)], [*prompt[-2:], 0])
    small, whole = probe.masses["small"], probe.masses["all"]
    assert small.layers == [0, 1, 0, 1]
    assert np.allclose(whole.selected, 1)
    assert np.allclose(whole.best, 1)
    assert not np.any(whole.estimated)
    assert np.all(np.array(small.selected) < 1)
    assert np.all(np.array(small.selected) > 0)
    assert np.all(np.array(small.estimated) > 0)
    by_name = {each.name: each.value for each in figures(small, "128", "pages")}
    assert 0 < by_name["mass_recall_128_p5/pages"] <= by_name["mass_recall_128_mean/pages"] < 1
    assert by_name["mass_recall_128_worst_layer/pages"] <= by_name["mass_recall_128_mean/pages"]
