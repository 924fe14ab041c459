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


async def encode_prompt(service: Service, prompt: PromptInput, *, add_special_tokens: bool, param: str) -> Tokens:
    """Raises ApiError 400 for ids that the model does not have, and for what is no text to its tokenizer."""
    if isinstance(prompt, str):
        tokens = await encode_text(service, prompt, add_special_tokens=add_special_tokens)
        if not tokens:
            raise ApiError(400, f"{param} has no tokens; give it some text", param=param)
        return tokens
    check_vocabulary(service, prompt, param)
    return array("i", prompt)


async def encode_conversation(service: Service, conversation: Conversation) -> Tokens:
    text = await render(tokenizer_of(service), conversation, service.off_loop)
    tokens = await encode_text(service, text, add_special_tokens=False)
    if not tokens:
        raise ApiError(400, "messages give an empty prompt", param="messages")
    return tokens


async def encode_text(service: Service, text: str, *, add_special_tokens: bool) -> Tokens:
    tokenizer = tokenizer_of(service)
    return await service.off_loop.run_for(
        text, lambda: array("i", tokenizer.encode(text, add_special_tokens=add_special_tokens))
    )


def tokenizer_of(service: Service) -> Any:
    tokenizer = service.engine.tokenizer
    if tokenizer is None:
        raise ApiError(400, "this model has no tokenizer: send token ids to /v1/completions")
    return tokenizer


def check_vocabulary(service: Service, ids: Sequence[int], param: str) -> None:
    if ids and max(ids) >= service.engine.vocab_size:
        last = service.engine.vocab_size - 1
        raise ApiError(400, f"{param} names a token that the model does not have; it has 0 to {last}", param=param)


def tokens_left(service: Service, prompt: Tokens, most: int | None, *, param: str) -> int:
    """How many tokens may be generated: ``most``, or what the context leaves. Raises ApiError 400 if they don't fit."""
    limit = service.engine.max_request_tokens
    wanted = len(prompt) + (1 if most is None else most)
    if wanted > limit:
        asked = "" if most is None else f" and {most} are to be generated"
        raise ApiError(
            400,
            f"at most {limit} tokens fit, but the prompt has {len(prompt)}{asked}: shorten the prompt"
            f"{'' if most is None or len(prompt) >= limit else ' or ask for fewer tokens'}",
            param=param if len(prompt) >= limit else "max_tokens",
            code="context_length_exceeded",
        )
    return limit - len(prompt) if most is None else most
