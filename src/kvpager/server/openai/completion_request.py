"""The body of /v1/completions."""

from typing import Annotated

from pydantic import Field

from kvpager.engine.sampling_params import MAX_CHOICES, MAX_LOGPROBS
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.openai.limits import MAX_TOKENS
from kvpager.server.openai.prompts import Prompts

DEFAULT_TOKENS = 16  # that OpenAI generates where max_tokens is absent


class CompletionRequest(GenerationFields):
    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS, description="0: with echo alone")] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES, description="must equal n")] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    suffix: Annotated[None, Field(description="inserting text is not supported")] = None
    add_special_tokens: bool | None = None

    @property
    def most_tokens(self) -> int:
        return DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens
