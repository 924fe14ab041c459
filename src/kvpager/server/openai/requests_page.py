"""The documentation page of the fields of a request, made from the models that check them."""

from collections.abc import Iterable
from typing import Any

from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.completion_request import CompletionRequest

_IGNORED = "accepted and ignored"
_INTRODUCTION = """\
# Fields of a request

What `/v1/completions` and `/v1/chat/completions` take, and the limits. A value beyond them, or a field that is not
here, is refused with 400 and the field's name in `error.param`. Each field takes `null` for its default. Prompt and
answer together must fit into the context (`max_model_len` of `/v1/models`); a chat without `max_tokens` may fill it, a
completion without it gets 16 tokens.

This page is made from the models in `server/openai` by `make docs`.

| field | completions | chats | value |
|---|---|---|---|
"""


def requests_page() -> str:
    texts, chats = CompletionRequest.model_json_schema(), ChatRequest.model_json_schema()
    names = list(dict.fromkeys([*texts["properties"], *chats["properties"]]))
    rows, ignored = [], []
    for name in names:
        found = [(root["properties"][name], root) for root in (texts, chats) if name in root["properties"]]
        notes = list(dict.fromkeys(note for schema, _ in found for note in _notes(schema)))
        if _IGNORED in notes:
            ignored.append(f"`{name}`")
            continue
        values = dict.fromkeys(_value(schema, root) for schema, root in found)
        marks = " | ".join("yes" if name in root["properties"] else "" for root in (texts, chats))
        rows.append(f"| `{name}` | {marks} | {'; '.join(['; in chats '.join(values), *notes])} |")
    return _INTRODUCTION + "\n".join(rows) + f"\n\nAccepted and ignored: {', '.join(ignored)}.\n"


def _notes(schema: dict[str, Any]) -> Iterable[str]:
    return [each["description"] for each in (schema, *schema.get("anyOf", ())) if "description" in each]


def _value(schema: dict[str, Any], root: dict[str, Any]) -> str:
    """A schema in words."""
    if "$ref" in schema:
        return _value(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_value(each, root) for each in schema["anyOf"] if each.get("type") != "null"))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "object" if "properties" in schema:
            return f"object of {', '.join(f'`{name}`' for name in schema['properties'])}"
        case "object":
            return f"object{_most(schema, 'maxProperties', 'entries')}"
        case "array":
            return f"list{_most(schema, 'maxItems', '')} ({_value(schema.get('items', {}), root)})"
        case "string":
            return f"text{_most(schema, 'maxLength', 'characters')}"
        case "boolean":
            return "true or false"
        case "integer" | "number" as kind:
            return f"{'whole number' if kind == 'integer' else 'number'}{_range(schema)}"
    return "null" if schema.get("type") == "null" else "any JSON"


def _most(schema: dict[str, Any], key: str, unit: str) -> str:
    return f" of at most {schema[key]:,} {unit}".rstrip() if key in schema else ""


def _range(schema: dict[str, Any]) -> str:
    low = f" from {schema['minimum']}" if "minimum" in schema else ""
    low = f" above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else low
    return low + (f" to {schema['maximum']}" if "maximum" in schema else "")
