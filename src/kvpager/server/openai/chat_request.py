"""The body of /v1/chat/completions."""

import inspect
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from transformers import PreTrainedTokenizerBase

from kvpager.engine.sampling_params import MAX_LOGPROBS
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.openai.limits import MAX_MESSAGES, MAX_TEMPLATE_ARGUMENTS, MAX_TOKENS, MAX_TOOLS, fault
from kvpager.server.openai.messages import Message
from kvpager.server.openai.tools import Tool, ToolChoice

_Value = bool | int | float | str | None
_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {
    "messages",
    "conversations",
}


def _template_arguments(value: dict[str, Any]) -> dict[str, Any]:
    if not all(len(name) <= 64 and name.isidentifier() for name in value) or _RESERVED & value.keys():
        raise fault("it takes variables of the model's own template alone, never a template")
    return value


TemplateArguments = Annotated[
    dict[str, _Value], Field(max_length=MAX_TEMPLATE_ARGUMENTS), AfterValidator(_template_arguments)
]


class ChatRequest(GenerationFields):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    chat_template_kwargs: TemplateArguments | None = None

    parallel_tool_calls: Annotated[Any, Field(description="accepted and ignored")] = None

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
