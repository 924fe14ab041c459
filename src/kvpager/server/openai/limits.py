"""The most and the least that a field of a request may hold. What the model adds to them, its own routes check."""

from typing import Annotated, Any

from pydantic import Field
from pydantic_core import PydanticCustomError

MAX_TOKENS = 2**31 - 1  # of a request, before the context is looked at
MAX_TOKEN_ID = 2**31 - 1
MAX_TOP_K = 2**22
MAX_BIASES = 1024
MAX_STOP_TOKENS = 256
MAX_PROMPTS = 128
MAX_IDS = 8 * 2**20  # in one list; a body of 8 MiB has fewer
MAX_MESSAGES = 4096
MAX_PARTS = 256  # of the content of one message
MAX_TOOLS = 128
MAX_TOOL_CALLS = 128  # in one message
MAX_NAME = 64  # of a function
MAX_SCHEMA = 65_536  # characters of a JSON schema or a regular expression
MAX_ALTERNATIVES = 1024  # texts of which an answer must be one
MAX_TEMPLATE_ARGUMENTS = 16

Finite = Annotated[float, Field(allow_inf_nan=False)]
ShortText = Annotated[str, Field(min_length=1, max_length=256)]


def fault(message: str) -> PydanticCustomError:
    """What a validator raises. ``message`` never quotes what was sent; the field's name is put before it."""
    return PydanticCustomError("kvpager", message)


def token_ids(value: Any, most: int) -> list[int]:
    """A list of token ids, none a bool, a float or a text."""
    if not isinstance(value, list) or len(value) > most:
        raise fault(f"it must be a list of at most {most} token ids")
    if not all(type(each) is int for each in value):
        raise fault("it must hold whole numbers alone")
    if value and not (min(value) >= 0 and max(value) <= MAX_TOKEN_ID):
        raise fault("it holds a number that is no token id: they go from 0 to the size of the vocabulary")
    return value
