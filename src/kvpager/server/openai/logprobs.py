"""Log-probabilities in OpenAI's two shapes: columns for completions, one object a token for chats.

A token is shown as the text it decodes to alone, special ones included. Bytes that are no character show as U+FFFD, and
then the chat shape has null for its bytes.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from kvpager.engine.detokenizer import REPLACEMENT, Detokenizer
from kvpager.engine.sampling import SampledToken, TokenLogprob

_LOWEST = -9999.0  # what OpenAI says for minus infinity, which JSON can't


class TokenTexts:
    """The text of each token of a tokenizer, the ones met last kept."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.of = lru_cache(maxsize=65_536)(self._decode)

    def _decode(self, token: int) -> str:
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text


@lru_cache(maxsize=2)
def texts_of(tokenizer: Any) -> TokenTexts:
    """One for all requests."""
    return TokenTexts(tokenizer)


def columns(
    texts: TokenTexts, tokens: Iterable[SampledToken], offsets: Sequence[int], *, has_top: bool
) -> dict[str, Any]:
    """For completions. ``offsets``: where the text of each token begins. ``has_top``: alternatives were asked for.

    A token without a logprob is the first of a prompt: nothing says how likely it was.
    """
    tokens = list(tokens)
    shown = [texts.of(each.token) for each in tokens]
    return {
        "tokens": shown,
        "token_logprobs": [None if each.logprob is None else _finite(each.logprob) for each in tokens],
        "top_logprobs": [_top(texts, each) for each in tokens] if has_top else None,
        "text_offset": list(offsets),
    }


def _top(texts: TokenTexts, each: SampledToken) -> dict[str, float] | None:
    """The likeliest and the one chosen. Of tokens with one text, the likeliest counts."""
    if each.logprob is None:
        return None
    found: dict[str, float] = {}
    for other in (*each.top, TokenLogprob(each.token, each.logprob)):
        found.setdefault(texts.of(other.token), _finite(other.logprob))
    return found


def objects(texts: TokenTexts, tokens: Iterable[SampledToken]) -> dict[str, Any]:
    """For chats."""
    content = [
        _object(texts, each.token, each.logprob or 0.0)
        | {"top_logprobs": [_object(texts, other.token, other.logprob) for other in each.top]}
        for each in tokens
    ]
    return {"content": content, "refusal": None}


def _object(texts: TokenTexts, token: int, logprob: float) -> dict[str, Any]:
    text = texts.of(token)
    as_bytes = None if REPLACEMENT in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": _finite(logprob), "bytes": as_bytes}


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)


def offsets_of(tokenizer: Any, tokens: Iterable[int], *, context: Sequence[int] = (), start: int = 0) -> list[int]:
    """Where in the text each token begins: after all characters that were whole before it.

    ``context``: the tokens before; ``start``: the length of their text.
    """
    detokenizer = Detokenizer(tokenizer, context=context)
    offsets = []
    for token in tokens:
        offsets.append(start)
        start += len(detokenizer.push(token).text)
    return offsets
