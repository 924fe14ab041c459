"""What approximate attention costs in quality: pass keys found, perplexity of long text, attention mass kept.

With the shipped model, whose weights `kvpager model fetch smollm2` brings. First of all selective attention with a
budget of the whole context has to give exact attention's tokens.
"""

from typing import TYPE_CHECKING, Any

from kvpager.bench import attention_mass, needle, text_loss
from kvpager.bench.forked_decode import answers, computed, forked, opened
from kvpager.bench.needle_text import needles
from kvpager.bench.report import SEED, Result, report
from kvpager.config.attend import EXACT, Selective
from kvpager.errors import InvariantError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL = "smollm2"


def run(quick: bool = False) -> dict[str, object]:
    from kvpager.models.load import load_model

    loaded = load_model(MODEL)
    model, tokenizer = loaded.model, loaded.tokenizer
    check(model, tokenizer)
    results: list[Result] = needle.measure(model, tokenizer, needle.QUICK if quick else needle.FULL)
    results += text_loss.measure(model, tokenizer, text_loss.QUICK if quick else text_loss.FULL)
    results += attention_mass.measure(model, tokenizer, attention_mass.QUICK if quick else attention_mass.FULL)
    return report("quality", results, MODEL, checks=["selecting all pages gives the tokens of exact attention"])


def check(model: "PreTrainedModel", tokenizer: Any) -> None:
    """Raises InvariantError unless a selection of nearly everything says what exact attention does."""
    example = next(needles(lambda text: needle.encode(tokenizer, text), 512, 2, SEED))
    kinds = (EXACT, Selective(budget=2 * len(example.context)), Selective(share=0.95, sinks=16, recent=16))
    with opened(model, tokenizer, 2048) as parts:
        context = computed(parts, example.context)
        said = answers(parts, [forked(parts, context, kind) for kind in kinds], example.question, 6)
    if said[1:] != said[:1] * 2:
        raise InvariantError(f"selecting all pages, or nearly all, gives other tokens than exact attention: {said}")
