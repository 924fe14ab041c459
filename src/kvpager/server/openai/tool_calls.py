"""Calls of tools, found in what a model says.

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>      Hermes, Qwen: anywhere, several
    {"name": "f", "arguments": {...}}                             Llama: the whole answer, or a list of such objects

Whatever does not parse, or names a function that is not among the tools, is text like any other.
"""

import json
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """``arguments``: JSON, as a text."""

    id: str
    name: str
    arguments: str

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, taken apart. ``text``: what is no call."""

    text: str
    calls: tuple[Call, ...] = ()


def parse(text: str, names: Collection[str]) -> Said:
    """``names``: of the functions that there are."""
    if _OPEN in text:
        before = text[: text.index(_OPEN)]
        blocks = [_calls(block, names) for block in _BLOCK.findall(text)]
        if all(blocks):
            return Said(before.rstrip(), tuple(call for block in blocks for call in block))
    elif text.lstrip()[:1] in ("{", "["):
        calls = _calls(text, names)
        if calls:
            return Said("", tuple(calls))
    return Said(text)


def _calls(text: str, names: Collection[str]) -> list[Call]:
    """None, if it is anything else than calls."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(each, names) for each in (value if isinstance(value, list) else [value])]
    return [] if None in calls else [call for call in calls if call is not None]


def _call(value: object, names: Collection[str]) -> Call | None:
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict | str):
        return None
    as_text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(f"call_{secrets.token_hex(12)}", name, as_text)


class CallStream:
    """Text of an answer as it comes: given out at once until a call may have begun, and held from there on.

    ``is_call``: it is one from its first character on.
    """

    def __init__(self, names: Collection[str], *, is_call: bool = False) -> None:
        self._names = names
        self._held = ""
        self._is_holding = is_call
        self._has_begun = False

    def push(self, text: str) -> str:
        """What of it is certainly no call."""
        self._held += text
        if self._is_holding:
            return ""
        if not self._has_begun:
            start = self._held.lstrip()[:1]
            if not start:
                return ""  # spaces before a call are part of it
            self._has_begun = True
            self._is_holding = start in ("{", "[")
            if self._is_holding:
                return ""
        at = self._held.find(_OPEN)
        if at >= 0:
            self._is_holding = True
        else:
            at = len(self._held) - _beginning(self._held)
        told, self._held = self._held[:at], self._held[at:]
        return told

    def end(self) -> Said:
        """What was held."""
        return parse(self._held, self._names)


def _beginning(text: str) -> int:
    """How many of the last characters may be the beginning of a call."""
    return next((size for size in range(min(len(_OPEN) - 1, len(text)), 0, -1) if _OPEN.startswith(text[-size:])), 0)
