"""What the fields of one body must say of each other. Raises ApiError 400 that names the field to change."""

from kvpager.server.errors import ApiError
from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.openai.tools import NamedTool


def check_completion(body: CompletionRequest) -> None:
    if body.max_tokens == 0 and not body.echo:
        raise _wrong("max_tokens", "0 gives nothing without echo; give at least 1")
    _check_both(body, body.most_tokens)
    if body.best_of is not None and body.best_of != body.choices:
        raise _wrong("best_of", f"must equal n, which is {body.choices}: all choices are returned")


def check_chat(body: ChatRequest) -> None:
    _check_both(body, body.most_tokens)
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise _wrong("max_tokens", "differs from max_completion_tokens; send one of the two")
    if body.top_logprobs is not None and not body.logprobs:
        raise _wrong("top_logprobs", "needs logprobs to be true")
    _check_tools(body)


def _check_tools(body: ChatRequest) -> None:
    choice, tools = body.tool_choice, body.tools or []
    names = [tool.function.name for tool in tools]
    if len(set(names)) != len(names):
        raise _wrong("tools", "has two functions of one name")
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise _wrong("tool_choice", "asks for a call, but there are no tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise _wrong("tool_choice", "names a function that is not among the tools")
    if _has_form(body):
        raise _wrong("response_format", "can't be given where a tool must be called")


def _has_form(body: GenerationFields) -> bool:
    has_format = body.response_format is not None and body.response_format.type != "text"
    return has_format or body.structured_outputs is not None


def _check_both(body: GenerationFields, most: int | None) -> None:
    if body.stream_options is not None and not body.stream:
        raise _wrong("stream_options", "is for streams; send stream true as well")
    if body.min_tokens is not None and most is not None and body.min_tokens > most:
        raise _wrong("min_tokens", f"is larger than the {most} tokens that may be generated")


def _wrong(param: str, message: str) -> ApiError:
    return ApiError(400, f"{param} {message}", param=param)
