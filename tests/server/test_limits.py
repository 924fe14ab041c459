"""What a body may be, and what of a request is bounded before a route sees it."""

import json
from time import thread_time

import pytest

from kvpager.server.errors import ApiError
from kvpager.server.limits import MAX_DEPTH, MAX_NODES, parse_json


def nested(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "prompt": "\\ud83d\\ude00 \xc3\xa4", "n": 1, "t": 0.5, "e": 1e308, "f": -0.0}',
        nested(MAX_DEPTH),
        json.dumps({"a": "[{" * 1000 + '\\" \\'}).encode(),
        b'{"a":[' + b"{}," * (MAX_NODES - 3) + b"[]]}",
    ],
    ids=["usual", "deep", "brackets in a string", "many nodes"],
)
def test_json_objects_are_taken(body: bytes) -> None:
    assert parse_json(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b'{"a": 1', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": "\xff"}', "UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"a": NaN}', "finite"),
        (b'{"a": -Infinity}', "finite"),
        (b'{"a": 1e400}', "finite"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too long"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (nested(MAX_DEPTH + 1), "deeper"),
        (b"[" * 1_000_000, "nested deeper|more than"),
        (b'{"a":[' + b"{}," * MAX_NODES + b"[]]}", "more than"),
        (b'{"a":[' + b"[]," * 2_700_000 + b"[]]}", "more than"),
    ],
)
def test_all_else_is_refused_at_once(body: bytes, reason: str) -> None:
    begin = thread_time()  # not the clock: a machine does other things
    with pytest.raises(ApiError, match=reason) as refused:
        parse_json(body)
    assert refused.value.status == 400
    assert thread_time() - begin < 1
