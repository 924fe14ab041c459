"""The messages of a chat, as clients send them and as chat templates take them: texts alone."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema

from kvpager.server.openai.forms import STRICT
from kvpager.server.openai.limits import MAX_NAME, MAX_PARTS, MAX_TOOL_CALLS, fault

_PART = {
    "type": "object",
    "required": ["type", "text"],
    "additionalProperties": False,
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_CONTENT_SCHEMA = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "maxItems": MAX_PARTS}, {"type": "null"}]
}


def _content(value: Any) -> str | None:
    """Parts are joined. Images, sounds and files are refused: nothing here fetches anything."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise fault(f"it must be a text or a list of at most {MAX_PARTS} parts")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or set(part) != {"type", "text"}:
            raise fault("it takes parts of type 'text' alone, with a field 'text'")
        if not isinstance(part["text"], str):
            raise fault("it has a part whose 'text' is no text")
    return "".join(part["text"] for part in value)


class CalledFunction(BaseModel):
    model_config = STRICT

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    arguments: str


class ToolCall(BaseModel):
    model_config = STRICT

    id: Annotated[str, Field(max_length=128)]
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    model_config = STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, PlainValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)] = None
    name: Annotated[str, Field(max_length=MAX_NAME)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=128)] | None = None
    refusal: Annotated[Any, Field(description="accepted and ignored")] = None
    annotations: Annotated[Any, Field(description="accepted and ignored")] = None
    audio: None = None
    function_call: None = None

    def for_template(self) -> dict[str, Any]:
        """``developer`` is what OpenAI calls ``system`` now; templates know the older name."""
        told: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or "",
        }
        if self.name is not None:
            told["name"] = self.name
        if self.tool_call_id is not None:
            told["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            told["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _called(call.function)} for call in self.tool_calls
            ]
        return told


def _called(function: CalledFunction) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so they want the object, where it is one."""
    try:
        arguments = json.loads(function.arguments)
    except (ValueError, RecursionError):
        arguments = function.arguments
    return {"name": function.name, "arguments": arguments if isinstance(arguments, dict) else function.arguments}
