"""/v1/completions: texts that go on from prompts."""

import asyncio
import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from kvpager.server.openai.agreement import check_completion
from kvpager.server.openai.asking import ask_of, new_id
from kvpager.server.openai.completion_choices import CompletionChoices, with_text
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.encoding import encode_prompt, tokenizer_of, tokens_left
from kvpager.server.openai.generation import begin, completions
from kvpager.server.openai.models import check_model
from kvpager.server.openai.sampling_of import sampling_of
from kvpager.server.openai.streaming import Chunks, Stream, events
from kvpager.server.openai.strict_body import StrictRoute
from kvpager.server.openai.usage import tiers_of, usage_of
from kvpager.server.service import Service, service_of

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/completions", response_model=None)
async def complete(
    request: Request, body: CompletionRequest, service: Annotated[Service, Depends(service_of)]
) -> Response:
    check_completion(body)
    model = check_model(service, body.model)
    tokenizer = tokenizer_of(service)
    encode = partial(encode_prompt, service, add_special_tokens=body.add_special_tokens is not False, param="prompt")
    prompts = await asyncio.gather(*(encode(prompt) for prompt in body.prompt))
    most = body.most_tokens
    for prompt in prompts:
        tokens_left(service, prompt, most, param="prompt")
    sampling = sampling_of(
        service,
        body,
        max_tokens=most,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    label = new_id("cmpl")
    answers = await begin(service, [ask_of(service, request, body, prompt, sampling, label) for prompt in prompts])
    choices = CompletionChoices(body, body.prompt, prompts, tokenizer)
    base: dict[str, Any] = {"id": label, "object": "text_completion", "created": int(time.time()), "model": model}
    if body.wants_stream:
        chunks = Chunks(base, with_text, usage=body.wants_usage_chunk)

        def usage() -> bytes:
            done = [answer.request.completions() for answer in answers if answer.request is not None]
            return chunks.usage(usage_of(done, tiers_of(service)))

        said = events(answers, partial(choices.speak, chunks), last=usage if body.wants_usage_chunk else None)
        return Stream(said, answers, service.options.drain_seconds)
    found = await completions(request, answers)
    return JSONResponse(
        base
        | {
            "choices": [choices.whole(prompt, done) for prompt, all_of in enumerate(found) for done in all_of],
            "usage": usage_of(found, tiers_of(service)),
        }
    )
