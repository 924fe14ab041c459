"""Bodies of requests as JSON objects, and nothing else: strict, and with a bound on their depth. Knows no route."""

import json
import re
from typing import Any, NoReturn

import numpy as np

from kvpager.server.errors import ApiError

MAX_DEPTH = 64
MAX_NODES = 100_000  # lists and objects: Python takes a second to make a million

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = np.zeros(256, np.int8)
_STEP[list(b"[{")], _STEP[list(b"]}")] = 1, -1
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body``. Raises ApiError 400 for anything else, a depth over 64, NaN, infinities, what is
    not UTF-8, and lone surrogates, which no text can hold."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise _wrong("the body is not UTF-8") from None
    _check_nodes(body)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if _SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _wrong("the body has half a surrogate pair, which is no character") from None
    except json.JSONDecodeError as error:
        raise _wrong(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):  # an integer with thousands of digits
        raise _wrong("the body holds a number that is too long") from None
    if not isinstance(value, dict):
        raise _wrong("the body must be a JSON object: {...}")
    return value


def _check_nodes(body: bytes) -> None:
    """Counts brackets outside strings; whatever is no JSON gives some number. No loop in Python: it may be 8 MiB."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    outside = b" ".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    steps = _STEP[np.frombuffer(outside.translate(None, _NOT_BRACKETS), np.uint8)]
    if np.count_nonzero(steps == 1) > MAX_NODES:
        raise _wrong(f"the body has more than {MAX_NODES} lists and objects")
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > MAX_DEPTH:
        raise _wrong(f"the body is nested deeper than {MAX_DEPTH} levels")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        _refuse_constant(text)
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise _wrong("the body holds a number that is not finite")


def _wrong(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")
