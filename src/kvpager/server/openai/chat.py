"""/v1/chat/completions: the next message of a conversation."""

import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from kvpager.server.openai.agreement import check_chat
from kvpager.server.openai.asking import ask_of, limit_of, new_id
from kvpager.server.openai.chat_choices import ChatChoices, called_names, turn_ended, with_text
from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.encoding import encode_conversation, tokenizer_of, tokens_left
from kvpager.server.openai.generation import begin, completions
from kvpager.server.openai.guiding import guide_of
from kvpager.server.openai.models import check_model
from kvpager.server.openai.sampling_of import sampling_of
from kvpager.server.openai.streaming import Chunks, Stream, events
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.openai.templates import Conversation
from kvpager.server.openai.tools import call_schema
from kvpager.server.openai.usage import tiers_of, usage_chunk, usage_of
from kvpager.server.service import Service, service_of

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", response_model=None)
async def chat(request: Request, body: ChatRequest, service: Annotated[Service, Depends(service_of)]) -> Response:
    check_chat(body)
    model = check_model(service, body.model)
    limit = limit_of(service, body)
    prompt = await encode_conversation(service, conversation_of(body), limit=limit)
    most = tokens_left(prompt, body.most_tokens, limit=limit, param="messages")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = sampling_of(service, body, max_tokens=most, logprobs=logprobs)
    call = call_schema(body.tools or [], body.tool_choice)
    guide = await guide_of(service, body, call=call)
    label = new_id("chatcmpl")
    ended = partial(turn_ended, called_names(body))
    answers = await begin(service, [ask_of(service, request, body, prompt, sampling, label, guide, ended)])
    choices = ChatChoices(body, tokenizer_of(service), must_call=call is not None)
    base: dict[str, Any] = {"id": label, "created": int(time.time()), "model": model}
    if body.wants_stream:
        chunks = Chunks(base | {"object": "chat.completion.chunk"}, with_text, usage=body.wants_usage_chunk)
        last = partial(usage_chunk, service, answers, chunks) if body.wants_usage_chunk else None
        said = events(answers, partial(choices.speak, chunks), first=choices.first(chunks), last=last)
        return Stream(said, answers, service.options.drain_seconds)
    found = await completions(request, answers)
    return JSONResponse(
        base
        | {
            "object": "chat.completion",
            "choices": [choices.whole(done) for done in found[0]],
            "usage": usage_of(found, tiers_of(service)),
        }
    )


def conversation_of(body: ChatRequest) -> Conversation:
    """Tools that must not be called are not told of."""
    tools = body.tools if body.tool_choice != "none" else None
    return Conversation(
        [message.for_template() for message in body.messages],
        [tool.for_template() for tool in tools] if tools else None,
        dict(body.chat_template_kwargs or {}),
    )
