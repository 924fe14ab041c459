"""Where text is cut before byte-pair merging, for tokenizers rebuilt from a GGUF.

transformers rebuilds every GPT-2-like tokenizer of a GGUF with GPT-2's own cuts and ignores the key
``tokenizer.ggml.pre``, so "a  5" would become other tokens than the model was trained on. Here the cuts are put right
for the families listed. Does not know the vocabulary, the merges or the chat template.
"""

from collections.abc import Callable
from typing import Any

from kvpager.models.gguf_file import GGUFHeader
from kvpager.models.hugging_face import need

PRE_KEY = "tokenizer.ggml.pre"


def correct_cuts(tokenizer: Any, header: GGUFHeader) -> None:
    """Changes ``tokenizer`` to cut text as the header's ``tokenizer.ggml.pre`` says; unlisted families stay as is."""
    cut = _FAMILY_TO_CUTS.get(str(header.key_to_value.get(PRE_KEY, "")))
    if cut is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = cut()


def _smollm() -> Any:
    """Every digit alone, before GPT-2's cuts."""
    pre = need("tokenizers", "reading a tokenizer").pre_tokenizers
    return pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])


_FAMILY_TO_CUTS: dict[str, Callable[[], Any]] = {"smollm": _smollm}
