"""Whose tokens a management route is about: a text, token ids or messages, as in the route that generated them."""

from typing import Annotated

from pydantic import BaseModel, Field

from kvpager.server.errors import ApiError
from kvpager.server.openai.chat_request import TemplateArguments
from kvpager.server.openai.encoding import Tokens, encode_conversation, encode_prompt
from kvpager.server.openai.fields import STRICT
from kvpager.server.openai.limits import MAX_MESSAGES, MAX_TOOLS
from kvpager.server.openai.messages import Message
from kvpager.server.openai.prompts import Prompts
from kvpager.server.openai.templates import Conversation
from kvpager.server.openai.tools import Tool
from kvpager.server.service import Service

MAX_SALT = 1024  # characters


class PromptFields(BaseModel):
    """Either ``prompt``, one text or one list of token ids, or ``messages`` with what belongs to them."""

    model_config = STRICT

    prompt: Prompts | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: TemplateArguments | None = None
    add_generation_prompt: bool | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None


async def tokens_of(service: Service, body: PromptFields) -> Tokens:
    """Raises ApiError."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    most = service.engine.max_request_tokens
    if body.prompt is not None:
        if len(body.prompt) != 1:
            raise ApiError(400, "prompt: give one text or one list of token ids here", param="prompt")
        tokens = await encode_prompt(service, body.prompt[0], add_special_tokens=True, limit=most, param="prompt")
    else:
        tokens = await encode_conversation(
            service,
            Conversation(
                [message.for_template() for message in body.messages or ()],
                [tool.for_template() for tool in body.tools] if body.tools else None,
                dict(body.chat_template_kwargs or {}),
                add_generation_prompt=body.add_generation_prompt is True,
            ),
            limit=most,
        )
    if len(tokens) > most:
        raise ApiError(400, f"at most {most} tokens fit, but these are {len(tokens)}", param="prompt")
    return tokens
