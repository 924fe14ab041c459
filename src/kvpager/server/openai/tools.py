"""The tools that a chat may call, and which of them it must: as sent, as a template takes them, as a JSON schema."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from kvpager.server.openai.forms import STRICT, JsonSchema
from kvpager.server.openai.limits import MAX_NAME

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[a-zA-Z0-9_.-]+$")]
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Function(BaseModel):
    model_config = STRICT

    name: _Name
    description: Annotated[str, Field(max_length=65_536)] | None = None
    parameters: JsonSchema | None = None
    strict: Annotated[Any, Field(description="accepted and ignored")] = None


class Tool(BaseModel):
    model_config = STRICT

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        told = {"name": self.function.name, "description": self.function.description or ""}
        return {"type": "function", "function": told | {"parameters": self.function.parameters or _NO_PARAMETERS}}


class NamedFunction(BaseModel):
    model_config = STRICT

    name: _Name


class NamedTool(BaseModel):
    model_config = STRICT

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def call_schema(tools: list[Tool], choice: ToolChoice | None) -> dict[str, Any] | None:
    """What an answer that must be a call looks like: {"name": ..., "arguments": ...}. None where it need not be one."""
    if choice == "required":
        allowed = tools
    elif isinstance(choice, NamedTool):
        allowed = [tool for tool in tools if tool.function.name == choice.function.name]
    else:
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "arguments": tool.function.parameters or _NO_PARAMETERS,
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in allowed
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
