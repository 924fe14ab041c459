"""Conversations as the model's own chat template writes them. A client can't choose the template, only its variables.

transformers renders it in Jinja's sandbox; here it gets a limit of time. Knows no request and no engine.
"""

from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError

from kvpager.server.errors import ApiError
from kvpager.server.openai.off_loop import OffLoop, OutOfTime

MAX_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Conversation:
    """``messages`` and ``tools`` as templates take them; ``arguments``: variables of this model's template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True


async def render(tokenizer: Any, conversation: Conversation, off_loop: OffLoop) -> str:
    """The conversation as one text. Raises ApiError where there is no template or it refuses the conversation."""
    if not getattr(tokenizer, "chat_template", None):
        raise ApiError(400, "this model has no chat template; use /v1/completions", param="messages")

    def apply() -> str:
        text: str = tokenizer.apply_chat_template(
            conversation.messages,
            tools=conversation.tools,
            tokenize=False,
            add_generation_prompt=conversation.add_generation_prompt,
            **conversation.arguments,
        )
        return text

    try:
        return await off_loop.run(apply, seconds=MAX_SECONDS)
    except OutOfTime:
        raise ApiError(
            400, f"the model's chat template took longer than {MAX_SECONDS:.0f} s for it", param="messages"
        ) from None
    except Exception as error:  # a template is a program of the model's author, and raises what it likes
        said = f": {error.message}" if type(error) is TemplateError and error.message else ""
        raise ApiError(400, f"the model's chat template refuses the conversation{said}", param="messages") from None
