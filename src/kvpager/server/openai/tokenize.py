"""/tokenize and /detokenize: what a text or a conversation is to the model, and back. The shapes are vLLM's."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema

from kvpager.server.errors import ApiError
from kvpager.server.openai.chat_request import TemplateArguments
from kvpager.server.openai.encoding import check_vocabulary, encode_text, tokenizer_of
from kvpager.server.openai.fields import TOKEN_SCHEMA
from kvpager.server.openai.forms import STRICT
from kvpager.server.openai.limits import MAX_IDS, MAX_MESSAGES, MAX_TOOLS, token_ids
from kvpager.server.openai.logprobs import texts_of
from kvpager.server.openai.messages import Message
from kvpager.server.openai.models import check_model
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.openai.templates import Conversation, render
from kvpager.server.openai.tools import Tool
from kvpager.server.service import Service, service_of

_MOST_TOKENS = 1 << 18  # that are told of a text, though the context may be shorter

router = APIRouter(route_class=StrictRoute)
_Service = Annotated[Service, Depends(service_of)]


class TokenizeRequest(BaseModel):
    """Either ``prompt`` or ``messages``, with what belongs to it."""

    model_config = STRICT

    model: Annotated[str, Field(max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: TemplateArguments | None = None
    return_token_strs: bool | None = None


_TOKENS_SCHEMA = {"type": "array", "items": TOKEN_SCHEMA}


class DetokenizeRequest(BaseModel):
    model_config = STRICT

    model: Annotated[str, Field(max_length=512)] | None = None
    tokens: Annotated[
        list[int], PlainValidator(lambda value: token_ids(value, MAX_IDS)), WithJsonSchema(_TOKENS_SCHEMA)
    ]


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: _Service) -> dict[str, Any]:
    check_model(service, body.model)
    tokenizer = tokenizer_of(service)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    if body.messages is None:
        text = body.prompt or ""
    else:
        text = await render(tokenizer, _conversation(body, body.messages), service.off_loop)
    add_special_tokens = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    param = "prompt" if body.messages is None else "messages"
    most = max(_MOST_TOKENS, service.engine.max_request_tokens)
    tokens = await encode_text(service, text, add_special_tokens=add_special_tokens, param=param, limit=most)
    found: dict[str, Any] = {"count": len(tokens), "max_model_len": service.engine.max_request_tokens}
    found["tokens"] = list(tokens)
    if body.return_token_strs:
        texts = texts_of(tokenizer)
        found["token_strs"] = await service.off_loop.run_for(text, lambda: [texts.of(token) for token in tokens])
    return found


def _conversation(body: TokenizeRequest, messages: list[Message]) -> Conversation:
    return Conversation(
        [message.for_template() for message in messages],
        [tool.for_template() for tool in body.tools] if body.tools else None,
        dict(body.chat_template_kwargs or {}),
        add_generation_prompt=body.add_generation_prompt is not False,
    )


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: _Service) -> dict[str, Any]:
    check_model(service, body.model)
    tokenizer = tokenizer_of(service)
    check_vocabulary(service, body.tokens, "tokens")
    return {"prompt": await service.off_loop.run(lambda: tokenizer.decode(body.tokens, skip_special_tokens=False))}
