"""Whether approximate attention finds a pass key where exact attention does, by depth, length and way of attending.

Each context is computed exactly. The question and the answer come a token a step, so that nothing of the answer can
come from steps that saw everything. One length after the other, one pool each.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvpager.bench.forked_decode import answers, computed, forked, opened
from kvpager.bench.needle_text import Needle, needles
from kvpager.bench.report import SEED, Result
from kvpager.config.attend import EXACT, Attend, Selective, SinksAndWindow, SnapKV
from kvpager.errors import InvariantError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from kvpager.engine.setup import EngineParts

BUDGET_SHARE = 8  # of a context; of 131,072 tokens 4,096 are 1/32, with which SmolLM2 loses some at 4,096; at least
_LEAST_BUDGET = 256  # tokens: 16 pages of 16, as few as may go to sinks, recent ones and several places in between
_ANSWER = 8  # tokens


@dataclass(frozen=True, slots=True)
class NeedleScale:
    """``lengths`` of the contexts in tokens; each depth is tried with every way of attending."""

    lengths: tuple[int, ...]
    depths: int


QUICK = NeedleScale((2048,), 3)
FULL = NeedleScale((2048, 4096, 8064), 6)


def ways(length: int) -> dict[str, Attend]:
    """By name: the budget that has the target, others, and in-request eviction with the largest of them."""
    found: dict[str, Attend] = {"exact": EXACT, "selective": selective(target_budget(length))}
    for share in (32, 16, 4):
        found[f"selective_1_of_{share}"] = selective(length // share)
    found["selective_mass_0.95"] = Selective(mass=0.95, sinks=16, recent=32)
    found["sinks-and-window_1_of_2"] = SinksAndWindow(window=length // 2, sinks=16)
    found["snapkv_1_of_2"] = SnapKV(budget=length // 2, observe=16, sinks=16)
    return found


def target_budget(length: int) -> int:
    """Tokens."""
    return max(_LEAST_BUDGET, length // BUDGET_SHARE)


def selective(budget: int) -> Selective:
    """The default's sinks and recent tokens, as shares of the budget."""
    return Selective(budget=budget, sinks=max(16, budget // 64), recent=max(16, budget // 16))


def found_by(parts: "EngineParts", tokenizer: Any, needle: Needle, kinds: dict[str, Attend]) -> dict[str, bool]:
    """Which ways of attending answer with the key."""
    context = computed(parts, needle.context)
    forks = [forked(parts, context, kind, len(needle.question)) for kind in kinds.values()]
    said = answers(parts, forks, needle.question, _ANSWER)
    parts.cache.free([context, *forks])
    return {name: needle.key in tokenizer.decode(each) for name, each in zip(kinds, said, strict=True)}


def measure(model: "PreTrainedModel", tokenizer: Any, scale: NeedleScale) -> list[Result]:
    results, hits = [], []
    for length in scale.lengths:
        kinds = ways(length)
        with opened(model, tokenizer, 2 * length + 4096) as parts:
            found = [
                found_by(parts, tokenizer, needle, kinds)
                for needle in needles(lambda text: encode(tokenizer, text), length, scale.depths, SEED + length)
            ]
        exact = [each for each in found if each["exact"]]
        results.append(Result(f"needle_exact_found/{length}", len(exact) / len(found), "share of depths"))
        for name in list(kinds)[1:]:
            results.append(Result(f"needle_recall/{name}/{length}", recall(exact, name), "share of exact's"))
        hits += exact
    if not hits:
        raise InvariantError("exact attention finds no needle: this model can't be tested with needles")
    target = recall(hits, "selective")
    budgets = ", ".join(f"{target_budget(length):,} of {length:,} tokens" for length in scale.lengths)
    return [Result("selective_needle_recall", target, f"share of exact's with {budgets}", at_least=1.0), *results]


def recall(exact: list[dict[str, bool]], name: str) -> float:
    """Of the needles that exact attention found, the share that this way did."""
    return sum(each[name] for each in exact) / len(exact) if exact else float("nan")


def selective_needle_recall(quick: bool = False) -> Result:
    """The figure alone, with the shipped model. Raises ModelError where it was not fetched."""
    from kvpager.models.load import load_model

    loaded = load_model("smollm2")
    return measure(loaded.model, loaded.tokenizer, QUICK if quick else NeedleScale((4096,), 6))[0]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids, no special ones."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids
