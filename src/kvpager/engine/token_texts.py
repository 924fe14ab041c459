"""The texts of single tokens, remembered, so that a text is put together without asking the tokenizer again.

That is right only where the text of tokens is the texts of each, one after the other: byte-level tokenizers (GPT-2,
Llama 3, Qwen, SmolLM) map each token to bytes, and decode these. A token whose bytes are not whole characters has
U+FFFD in its text; the tokenizer is asked about texts that contain one. Others drop spaces at the beginning, or join
pieces by rules: they are asked each time.
"""

from typing import Any

from kvpager.engine.detokenizer import REPLACEMENT, Tokenizer

_MOST_KEPT = 1 << 16  # tokens of one tokenizer whose texts are kept


class TokenTexts:
    """A tokenizer that decodes what ``tokenizer`` does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._is_byte_level = _is_byte_level(tokenizer)
        self._kept: tuple[dict[int, str], dict[int, str]] = ({}, {})  # without special tokens or with

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        if self._is_byte_level:
            kept = self._kept[not skip_special_tokens]
            texts = [kept.get(token) or self._look_up(token, kept, skip_special_tokens) for token in token_ids]
            text = "".join(texts)
            if REPLACEMENT not in text:
                return text
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _look_up(self, token: int, kept: dict[int, str], skip_special_tokens: bool) -> str:
        text = self._tokenizer.decode([token], skip_special_tokens=skip_special_tokens)
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[token] = text
        return text


def _is_byte_level(tokenizer: Any) -> bool:
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return type(decoder).__name__ == "ByteLevel" and not getattr(tokenizer, "clean_up_tokenization_spaces", True)
