"""From a request over HTTP to what the engine is asked: whose it is, how urgent, and how it attends."""

import secrets

from fastapi import Request

from kvpager.engine.endings import EndedBy
from kvpager.engine.guide import Guide
from kvpager.engine.sampling_params import Sampling
from kvpager.errors import ConfigError
from kvpager.server.answer import Ask
from kvpager.server.errors import ApiError
from kvpager.server.openai.encoding import Tokens
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.request_ids import session_of
from kvpager.server.service import Service
from kvpager.server.tenant import check_priority, scope_for, tenant_of


def new_id(kind: str) -> str:
    """Of an answer. Ours alone: two clients that give one id for two requests disturb nobody."""
    return f"{kind}-{secrets.token_hex(12)}"


def limit_of(service: Service, body: GenerationFields) -> int:
    """Tokens that the prompt and what is generated may have together. Raises ApiError."""
    try:
        return service.engine.longest(body.attend)
    except ConfigError as error:
        raise ApiError(400, f"attend: {error}", param="attend") from None


def ask_of(
    service: Service,
    request: Request,
    body: GenerationFields,
    prompt: Tokens,
    sampling: Sampling,
    label: str,
    guide: Guide | None = None,
    ended: EndedBy | None = None,
) -> Ask:
    """Raises ApiError. A guide serves several prompts: each gets one of its own."""
    most = service.engine.options.max_running
    if sampling.n > most:
        raise ApiError(400, f"n is larger than the {most} choices that may run at once", param="n")
    tenant, priority = tenant_of(request), body.priority or 0
    check_priority(tenant, priority)
    return Ask(
        prompt,
        sampling,
        priority=priority,
        scope=scope_for(tenant, body.cache_salt),
        attend=body.attend,
        label=label,
        guide=None if guide is None else guide.fork(),
        ended=ended,
        session=session_of(request),
        traceparent=request.headers.get("traceparent", ""),
    )
