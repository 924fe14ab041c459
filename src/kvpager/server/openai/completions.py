"""/v1/completions."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from kvpager.engine.sampling_params import Sampling
from kvpager.prefix.hashing import Scope
from kvpager.server.engine_thread import Ask
from kvpager.server.openai.models import check_model
from kvpager.server.service import Service, service_of
from kvpager.server.tenant import tenant_of

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request, service: Annotated[Service, Depends(service_of)]) -> dict[str, Any]:
    body = await request.json()
    model = check_model(service, body.get("model"))
    sampling = Sampling(max_tokens=body.get("max_tokens", 16), temperature=body.get("temperature", 1.0))
    answer = await service.thread.submit(Ask(body["prompt"], sampling, scope=Scope(tenant_of(request).salt)))
    done = await answer.completions()
    choices = [{"index": each.choice, "text": each.text, "finish_reason": each.finish_reason.value} for each in done]
    return {"id": "cmpl-0", "object": "text_completion", "model": model, "choices": choices}
