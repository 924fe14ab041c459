"""Prompts and conversations become token ids, off the event loop where that takes time; and are refused if too long.

Knows the tokenizer and the engine's limits. Does not know what is asked of the tokens.
"""

from array import array
from collections.abc import Sequence
from typing import Any

from kvpager.server.errors import ApiError
from kvpager.server.openai.prompts import PromptInput
from kvpager.server.openai.templates import Conversation, render
from kvpager.server.service import Service

Tokens = Sequence[int]

_SLICE = 65_536  # characters
_SLACK = 128  # tokens by which a slice may count too many


async def encode_prompt(
    service: Service, prompt: PromptInput, *, add_special_tokens: bool, limit: int, param: str
) -> Tokens:
    """Raises ApiError 400 for ids that the model does not have, for more than ``limit`` tokens, and for none."""
    if isinstance(prompt, str):
        tokens = await encode_text(service, prompt, add_special_tokens=add_special_tokens, limit=limit, param=param)
        if not tokens:
            raise ApiError(400, f"{param} has no tokens; give it some text", param=param)
        return tokens
    if len(prompt) > limit:
        raise _too_long(limit, len(prompt), None, param)
    check_vocabulary(service, prompt, param)
    return array("i", prompt)


async def encode_conversation(service: Service, conversation: Conversation, *, limit: int) -> Tokens:
    text = await render(tokenizer_of(service), conversation, service.off_loop)
    tokens = await encode_text(service, text, add_special_tokens=False, limit=limit, param="messages")
    if not tokens:
        raise ApiError(400, "messages give an empty prompt", param="messages")
    return tokens


async def encode_text(service: Service, text: str, *, add_special_tokens: bool, limit: int, param: str) -> Tokens:
    """Raises ApiError 400 for a text that surely has more than ``limit`` tokens; not for each that has."""
    tokenizer = tokenizer_of(service)

    def encode() -> Tokens:
        if _is_surely_longer(tokenizer, text, limit):
            raise ApiError(
                400, f"at most {limit} tokens fit, but {param} has more: shorten it", param=param,
                code="context_length_exceeded",
            )  # fmt: skip
        return array("i", tokenizer.encode(text, add_special_tokens=add_special_tokens))

    return await service.off_loop.run_for(text, encode)


def _is_surely_longer(tokenizer: Any, text: str, most: int) -> bool:
    """Counts slice by slice, and no further than it must: a tokenizer takes hundreds of bytes for each token that it
    finds. A slice may have cut tokens in two, so there is some slack."""
    if len(text) <= _SLICE:
        return False
    count = 0
    for at in range(0, len(text), _SLICE):
        count += len(tokenizer.encode(text[at : at + _SLICE], add_special_tokens=False)) - _SLACK
        if count > most:
            return True
    return False


def tokenizer_of(service: Service) -> Any:
    tokenizer = service.engine.tokenizer
    if tokenizer is None:
        raise ApiError(400, "this model has no tokenizer: send token ids to /v1/completions")
    return tokenizer


def check_vocabulary(service: Service, ids: Sequence[int], param: str) -> None:
    if ids and max(ids) >= service.engine.vocab_size:
        last = service.engine.vocab_size - 1
        raise ApiError(400, f"{param} names a token that the model does not have; it has 0 to {last}", param=param)


def tokens_left(prompt: Tokens, most: int | None, *, limit: int, param: str) -> int:
    """How many tokens may be generated: ``most``, or what the limit leaves. Raises ApiError 400 if they don't fit."""
    if len(prompt) + (1 if most is None else most) > limit:
        raise _too_long(limit, len(prompt), most, param)
    return limit - len(prompt) if most is None else most


def _too_long(limit: int, prompt: int, most: int | None, param: str) -> ApiError:
    asked = "" if most is None else f" and {most} are to be generated"
    is_prompts = prompt >= limit or most is None
    return ApiError(
        400,
        f"at most {limit} tokens fit, but the prompt has {prompt}{asked}: shorten the prompt"
        f"{'' if is_prompts else ' or ask for fewer tokens'}",
        param=param if is_prompts else "max_tokens",
        code="context_length_exceeded",
    )
