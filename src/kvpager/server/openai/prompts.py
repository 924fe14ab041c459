"""The four kinds of prompt that a completion may have: a text, texts, token ids, lists of token ids."""

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from kvpager.server.openai.limits import MAX_IDS, MAX_PROMPTS, MAX_TOKEN_ID, fault, token_ids

PromptInput = str | list[int]

_KINDS = "a text, a list of texts, a list of token ids, or a list of such lists"


def _prompts(value: Any) -> list[PromptInput]:
    if isinstance(value, str):
        return [_text(value)]
    if not isinstance(value, list):
        raise fault(f"it must be {_KINDS}")
    if not value:
        raise fault("it is an empty list; give at least one token")
    if type(value[0]) is int:
        return [_ids(value)]
    if len(value) > MAX_PROMPTS:
        raise fault(f"it takes at most {MAX_PROMPTS} prompts at once")
    if isinstance(value[0], str):
        return [_text(each) for each in value]
    return [_ids(each) for each in value]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise fault(f"it must be {_KINDS}, not a mixture")
    if not value:
        raise fault("it has an empty text; give it some")
    return value


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise fault(f"it must be {_KINDS}, not a mixture")
    if not value:
        raise fault("it has an empty list; give at least one token")
    return token_ids(value, MAX_IDS)


_TEXT = {"type": "string", "minLength": 1}
_TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}}
_SCHEMA = {
    "anyOf": [
        _TEXT,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TEXT},
        _TOKENS,
        {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": _TOKENS},
    ]
}
Prompts = Annotated[list[PromptInput], PlainValidator(_prompts), WithJsonSchema(_SCHEMA)]
