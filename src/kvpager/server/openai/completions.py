"""/v1/completions: texts that go on from prompts."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from kvpager.server.openai.agreement import check_completion
from kvpager.server.openai.asking import ask_of, limit_of, new_id
from kvpager.server.openai.completion_choices import CompletionChoices, echo_of, with_text
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.encoding import Tokens, encode_prompt, tokenizer_of, tokens_left
from kvpager.server.openai.generation import begin, completions
from kvpager.server.openai.guiding import guide_of
from kvpager.server.openai.models import check_model
from kvpager.server.openai.sampling_of import sampling_of
from kvpager.server.openai.streaming import Chunks, Stream, events
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.openai.usage import tiers_of, usage_chunk, usage_of
from kvpager.server.service import Service, service_of

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/completions", response_model=None)
async def complete(
    request: Request, body: CompletionRequest, service: Annotated[Service, Depends(service_of)]
) -> Response:
    check_completion(body)
    model = check_model(service, body.model)
    tokenizer = tokenizer_of(service)
    limit = limit_of(service, body)
    encode = partial(
        encode_prompt, service, add_special_tokens=body.add_special_tokens is not False, limit=limit, param="prompt"
    )
    prompts = await asyncio.gather(*(encode(prompt) for prompt in body.prompt))
    most = body.most_tokens
    for prompt in prompts:
        tokens_left(prompt, most, limit=limit, param="prompt")
    sampling = sampling_of(
        service,
        body,
        max_tokens=most,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    echoes = await service.off_loop.run(lambda: _echoes(body, prompts, tokenizer)) if body.echo else [""] * len(prompts)
    guide = await guide_of(service, body)
    label = new_id("cmpl")
    answers = await begin(
        service, [ask_of(service, request, body, prompt, sampling, label, guide) for prompt in prompts]
    )
    choices = CompletionChoices(body, prompts, echoes, answers, tokenizer)
    base: dict[str, Any] = {"id": label, "object": "text_completion", "created": int(time.time()), "model": model}
    if body.wants_stream:
        chunks = Chunks(base, with_text, usage=body.wants_usage_chunk)
        last = partial(usage_chunk, service, answers, chunks) if body.wants_usage_chunk else None
        takes_time = body.echo and body.logprobs is not None  # for a long prompt
        said = events(
            answers, partial(choices.speak, chunks), last=last, off_loop=service.off_loop if takes_time else None
        )
        return Stream(said, answers, service.options.drain_seconds)
    found = await completions(request, answers)

    def whole() -> list[dict[str, Any]]:
        return [choices.whole(prompt, done) for prompt, all_of in enumerate(found) for done in all_of]

    each = whole() if body.logprobs is None else await service.off_loop.run(whole)
    return JSONResponse(base | {"choices": each, "usage": usage_of(found, tiers_of(service))})


def _echoes(body: CompletionRequest, prompts: Sequence[Tokens], tokenizer: Any) -> list[str]:
    return [echo_of(given, tokens, tokenizer) for given, tokens in zip(body.prompt, prompts, strict=True)]
