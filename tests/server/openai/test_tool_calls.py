"""Calls found in what a model says, at once and letter by letter."""

import json

import pytest

from kvpager.server.openai.tool_calls import CallStream, parse

NAMES = frozenset({"phase", "rest"})
ONE = '<tool_call>\n{"name": "phase", "arguments": {"of": "moon"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "rest", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (ONE, "", ["phase"]),
        (f"Let me look.\n{ONE}\n{OTHER}", "Let me look.", ["phase", "rest"]),
        (ONE.removesuffix("</tool_call>"), "", ["phase"]),
        ('{"name": "phase", "parameters": {"of": "moon"}}', "", ["phase"]),
        (' [{"name": "phase", "arguments": {}}, {"name": "rest"}]', "", ["phase", "rest"]),
        ("the moon", "the moon", []),
        ('{"name": "unknown", "arguments": {}}', '{"name": "unknown", "arguments": {}}', []),
        ('{"name": "phase", "arguments": 5}', '{"name": "phase", "arguments": 5}', []),
        ("<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
        (f"{ONE}<tool_call>{{</tool_call>", f"{ONE}<tool_call>{{</tool_call>", []),
        ("[1, 2]", "[1, 2]", []),
        ("[]", "[]", []),
        ("  ", "  ", []),
        ("", "", []),
        ("a < b, <tool", "a < b, <tool", []),
    ],
)
def test_the_same_calls_are_found_at_once_and_letter_by_letter(text: str, said: str, calls: list[str]) -> None:
    whole = parse(text, NAMES)
    assert (whole.text, [call.name for call in whole.calls]) == (said, calls)
    for size in (1, 2, 7, 1000):
        stream = CallStream(NAMES)
        told = "".join(stream.push(text[at : at + size]) for at in range(0, len(text), size))
        rest = stream.end()
        assert (told + rest.text).rstrip() == said.rstrip()
        assert [(call.name, call.arguments) for call in rest.calls] == [(c.name, c.arguments) for c in whole.calls]


def test_text_is_given_out_as_soon_as_it_can_not_be_a_call() -> None:
    stream = CallStream(NAMES)
    assert stream.push("the <") == "the "
    assert stream.push("b> and <tool_") == "<b> and "
    assert stream.push("call>") == ""
    assert stream.push('{"name": "rest"}</tool_call>') == ""
    assert [call.name for call in stream.end().calls] == ["rest"]


def test_arguments_are_json_texts_and_ids_differ() -> None:
    first, second = parse(f"{ONE}{ONE}", NAMES).calls
    assert json.loads(first.arguments) == {"of": "moon"}
    assert first.id != second.id
