"""From what a client says of the form of its answer to a grammar, as the library takes it. Compiles nothing.

    response_format        {"type": "json_object"}
                           {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}
                           {"type": "regex", "pattern": ...}, {"type": "grammar", "grammar": ...}    ours
    structured_outputs     {"json": ...}, {"json_object": true}, {"regex": ...}, {"choice": [...]}, {"grammar": ...}

With ``strict`` a schema that can't be enforced to the letter is refused. Otherwise keywords that are not supported are
ignored, and ``oneOf`` counts as ``anyOf``. Whitespace in JSON is bounded, so that no model fills its answer with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from llguidance import LLMatcher

from kvpager.errors import RequestError

MAX_BYTES = 64 << 10  # of a schema, pattern or grammar
MAX_DEPTH = 64  # of a schema
MAX_CHOICES = 1024
_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,32}"
_SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~/")  # of regular expressions
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, slots=True)
class Form:
    """What form an answer is to have. ``field``: of the request, that says so."""

    field: str
    grammar: str


def form_of(
    response_format: Mapping[str, object] | None, structured_outputs: Mapping[str, object] | None = None
) -> Form | None:
    """The form of an answer; None if any text will do. Raises RequestError that names the field and its fault."""
    both = [each for each in (_of_format(response_format), _of_extras(structured_outputs)) if each is not None]
    if len(both) > 1:
        raise RequestError("response_format and structured_outputs both restrict the answer; give one of them")
    return both[0] if both else None


def _of_format(given: object) -> Form | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise RequestError("response_format must be an object with a type")
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return _json({"type": "object"}, "response_format", is_strict=True)
        case "json_schema":
            return _of_schema(given.get("json_schema"))
        case "regex":
            return _regex(given.get("pattern"), "response_format.pattern")
        case "grammar":
            return _lark(given.get("grammar"), "response_format.grammar")
    raise RequestError("response_format.type must be one of text, json_object, json_schema, regex and grammar")


def _of_schema(given: object) -> Form:
    field = "response_format.json_schema"
    if not isinstance(given, Mapping) or "schema" not in given:
        raise RequestError(f"{field} must be an object with a name and a schema")
    strict = given.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{field}.strict must be true or false")
    return _json(given["schema"], f"{field}.schema", is_strict=bool(strict))


def _of_extras(given: object) -> Form | None:
    field = "structured_outputs"
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise RequestError(f"{field} must be an object")
    kinds = [kind for kind in given if given[kind] not in (None, False)]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise RequestError(f"{field} must have exactly one of {', '.join(_KINDS)}")
    kind, value, field = kinds[0], given[kinds[0]], f"{field}.{kinds[0]}"
    match kind:
        case "json":
            return _json(_parsed(value, field), field, is_strict=False)
        case "json_object":
            return _json({"type": "object"}, field, is_strict=True)
        case "regex":
            return _regex(value, field)
        case "choice":
            return _regex(_alternatives(value, field), field)
    return _lark(value, field)


def _parsed(schema: object, field: str) -> object:
    """A schema may be given as a text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(_text(schema, field))
    except (ValueError, RecursionError):
        raise RequestError(f"{field} is no JSON") from None


def _json(schema: object, field: str, *, is_strict: bool) -> Form:
    if not isinstance(schema, Mapping):
        raise RequestError(f"{field} must be a JSON schema, an object")
    if _is_deeper(schema, MAX_DEPTH):
        raise RequestError(f"{field} is nested deeper than {MAX_DEPTH}")
    is_lenient = not is_strict
    try:
        grammar = LLMatcher.grammar_from_json_schema(
            _text(json.dumps(schema, allow_nan=False), field),
            overrides={"whitespace_pattern": _WHITESPACE, "lenient": is_lenient, "coerce_one_of": is_lenient},
        )
    except RequestError:
        raise
    except ValueError:
        raise RequestError(f"{field} is no JSON: it has a number that is not finite, or too large") from None
    return Form(field, grammar)


def _regex(pattern: object, field: str) -> Form:
    return Form(field, LLMatcher.grammar_from_regex(_text(pattern, field)))


def _lark(grammar: object, field: str) -> Form:
    return Form(field, LLMatcher.grammar_from_lark(_text(grammar, field)))


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        inner = [list(each.values()) if isinstance(each, Mapping) else each for each in level]
        level = [item for each in inner if isinstance(each, list) for item in each]
        if not level:
            return False
    return True


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{field} must be a text that is not empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise RequestError(f"{field} has half of a surrogate pair") from None
    if size > MAX_BYTES:
        raise RequestError(f"{field} has {size} bytes, but at most {MAX_BYTES} are allowed")
    return value


def _alternatives(value: object, field: str) -> str:
    """A pattern of one of several texts."""
    is_list = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    if not isinstance(value, list) or not is_list or not 1 <= len(value) <= MAX_CHOICES:
        raise RequestError(f"{field} must be a list of 1 to {MAX_CHOICES} texts that are not empty")
    return "|".join(_escaped(each) for each in value)


def _escaped(text: str) -> str:
    return "".join(f"\\{each}" if each in _SPECIAL else each for each in text)
