"""The fields that completions and chats share: types and limits. What a model or an engine adds is checked later.

Every field takes null for its default, as OpenAI's do; all others than those named here are refused.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema

from kvpager.engine.sampling_params import MAX_CHOICES, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from kvpager.server.openai.forms import STRICT as STRICT
from kvpager.server.openai.forms import ResponseFormat, StructuredOutputs
from kvpager.server.openai.limits import (
    MAX_BIASES,
    MAX_STOP_TOKENS,
    MAX_TOKEN_ID,
    MAX_TOKENS,
    MAX_TOP_K,
    Finite,
    ShortText,
    fault,
    token_ids,
)


def _stop(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise fault("it must be a string or a list of strings")
    if len(texts) > MAX_STOP_STRINGS or not all(1 <= len(text) <= MAX_STOP_LENGTH for text in texts):
        raise fault(f"it takes at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(texts)


def _logit_bias(value: Any) -> dict[int, float] | None:
    """JSON has ids as texts."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise fault(f"it must be an object of at most {MAX_BIASES} token ids")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
            raise fault("it has a key that is no token id: they go from 0 to the size of the vocabulary")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise fault("it has a value that is not a number from -100 to 100")
        biases[int(key)] = float(bias)
    return biases


def _stop_token_ids(value: Any) -> tuple[int, ...] | None:
    return None if value is None else tuple(token_ids(value, MAX_STOP_TOKENS))


_STOP_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
_STOP_SCHEMA = {"anyOf": [_STOP_TEXT, {"type": "array", "items": _STOP_TEXT, "maxItems": 16}, {"type": "null"}]}
_BIAS_SCHEMA = {
    "anyOf": [
        {
            "type": "object",
            "maxProperties": MAX_BIASES,
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
        {"type": "null"},
    ]
}
TOKEN_SCHEMA = {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}
_STOP_TOKENS_SCHEMA = {
    "anyOf": [{"type": "array", "items": TOKEN_SCHEMA, "maxItems": MAX_STOP_TOKENS}, {"type": "null"}]
}


class StreamOptions(BaseModel):
    model_config = STRICT

    include_usage: bool | None = None
    include_obfuscation: Annotated[Any, Field(description="accepted and ignored")] = None
    continuous_usage_stats: Annotated[Any, Field(description="accepted and ignored")] = None


class GenerationFields(BaseModel):
    """What may be asked of any answer. The second half is not OpenAI's: clients send it as ``extra_body``."""

    model_config = STRICT

    model: Annotated[str, Field(max_length=512)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    temperature: Annotated[Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Finite, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...] | None, PlainValidator(_stop), WithJsonSchema(_STOP_SCHEMA)] = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Finite, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[int, float] | None, PlainValidator(_logit_bias), WithJsonSchema(_BIAS_SCHEMA)] = None
    response_format: ResponseFormat | None = None

    structured_outputs: StructuredOutputs | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOP_K, description="-1 and 0: among all")] | None = None
    min_p: Annotated[Finite, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Finite, Field(ge=0.01, le=100)] | None = None
    stop_token_ids: Annotated[
        tuple[int, ...] | None, PlainValidator(_stop_token_ids), WithJsonSchema(_STOP_TOKENS_SCHEMA)
    ] = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[ShortText, Field(description="only requests with the same one share pages")] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000, description="larger runs before smaller")] | None = None
    attend: Annotated[ShortText, Field(description="approximate attention, see the option 'attend'")] | None = None
    return_token_ids: bool | None = None

    user: Annotated[Any, Field(description="accepted and ignored")] = None
    metadata: Annotated[Any, Field(description="accepted and ignored")] = None
    store: Annotated[Any, Field(description="accepted and ignored")] = None
    service_tier: Annotated[Any, Field(description="accepted and ignored")] = None
    safety_identifier: Annotated[Any, Field(description="accepted and ignored")] = None
    prompt_cache_key: Annotated[Any, Field(description="accepted and ignored")] = None
    prompt_cache_retention: Annotated[Any, Field(description="accepted and ignored")] = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def wants_stream(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)
