"""The engine's ``Sampling`` of a request's fields: nulls become OpenAI's defaults."""

from typing import Any

from kvpager.engine.sampling_params import Sampling
from kvpager.server.openai.encoding import check_vocabulary
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.service import Service

_DEFAULTS: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "seed": None,
    "n": 1,
    "stop": (),
    "stop_token_ids": (),
    "ignore_eos": False,
    "min_tokens": 0,
}


def sampling_of(
    service: Service,
    body: GenerationFields,
    *,
    max_tokens: int,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> Sampling:
    """Raises ApiError 400 for token ids that the model does not have."""
    check_vocabulary(service, list(body.logit_bias or ()), "logit_bias")
    check_vocabulary(service, body.stop_token_ids or (), "stop_token_ids")
    given = {name: getattr(body, name) for name in _DEFAULTS}
    chosen = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
    top_k = max(0, body.top_k or 0)
    return Sampling(max_tokens=max_tokens, top_k=top_k, logprobs=logprobs, prompt_logprobs=prompt_logprobs, **chosen)
