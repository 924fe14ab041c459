"""Recall of the attention mass on a real model's queries and keys, by page size and budget, and what is guessed of it.

Each share is of one query head, layer and decode step of long text.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvpager.bench.forked_decode import computed, forced_losses, forked_with, opened
from kvpager.bench.long_text import CHARACTERS, long_text
from kvpager.bench.mass_probe import Masses, MassProbe
from kvpager.bench.needle import encode, selective
from kvpager.bench.report import Result

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class MassScale:
    """``context`` and ``budgets`` in tokens; ``steps``: decode steps that are measured."""

    context: int
    steps: int
    page_sizes: tuple[int, ...]
    budgets: tuple[int, ...]


QUICK = MassScale(1024, 4, (16, 64), (256, 512))
FULL = MassScale(4096, 64, (16, 64), (256, 512, 1024, 2048))


def measure(model: "PreTrainedModel", tokenizer: Any, scale: MassScale) -> list[Result]:
    results = []
    for page_size in scale.page_sizes:
        for name, masses in masses_of(model, tokenizer, scale, page_size).items():
            results += figures(masses, name, f"pages_of_{page_size}")
    return results


def masses_of(model: "PreTrainedModel", tokenizer: Any, scale: MassScale, page_size: int) -> dict[str, Masses]:
    """By budget, as text."""
    stop = scale.context + scale.steps
    tokens = encode(tokenizer, long_text(CHARACTERS * stop))[: stop + 1]
    kinds = {str(budget): selective(budget) for budget in scale.budgets}
    with opened(model, tokenizer, stop + 8 * page_size, page_size) as parts:
        probe = MassProbe(parts.limits.layout, kinds)
        context = computed(parts, tokens[: scale.context])
        forced_losses(parts, [forked_with(context, probe)], tokens[scale.context :])
        return probe.masses


def figures(masses: Masses, budget: str, pages: str) -> list[Result]:
    selected, best, estimated = (np.stack(each) for each in (masses.selected, masses.best, masses.estimated))
    layers = np.array(masses.layers)
    worst = min(float(selected[layers == layer].mean()) for layer in np.unique(layers))
    error = np.abs(estimated - (1 - selected))
    name = f"mass_recall_{budget}"
    return [
        Result(f"{name}_mean/{pages}", float(selected.mean()), "share"),
        Result(f"{name}_p5/{pages}", float(np.quantile(selected, 0.05)), "share"),
        Result(f"{name}_worst_layer/{pages}", worst, "share"),
        Result(f"{name}_best_possible/{pages}", float(best.mean()), "share"),
        Result(f"mass_skipped_{budget}_estimated/{pages}", float(estimated.mean()), "share"),
        Result(f"mass_skipped_{budget}_error/{pages}", float(error.mean()), "share"),
    ]
