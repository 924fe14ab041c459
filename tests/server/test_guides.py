"""Answers in a form that clients ask for: right whatever the model would rather say, and safe whatever they send."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from kvpager.engine import Completion, Engine, FinishReason, Sampling
from kvpager.engine.guide import Guide
from kvpager.errors import ConfigError, RequestError
from kvpager.server import guides as module
from kvpager.server.errors import ApiError
from kvpager.server.guides import Guides, make_guide
from tests.cli.tiny_model import tiny_model, tiny_tokenizer
from tests.engine.engines import Numbers

PET = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "dog"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "left": {"$ref": "#/$defs/tree"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}


def schema(given: object, *, strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given, "strict": strict}}


@pytest.fixture(scope="module")
def guides() -> Iterator[Guides]:
    opened = Guides(tiny_tokenizer())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    tokenizer = tiny_tokenizer()
    with Engine(tiny_model(len(tokenizer), context=1024), tokenizer=tokenizer, page_size=16, num_blocks=256) as opened:
        yield opened


def answers(engine: Engine, guide: Guide | None, **options: object) -> list[Completion]:
    request = engine.submit("the moon", Sampling(**{"max_tokens": 700, "seed": 1, **options}), guide=guide)
    while engine.has_work:
        engine.step()
    return request.completions()


# -- what comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("form", [PET, TREE], ids=["pet", "tree"])
def test_every_answer_is_of_the_schema(
    guides: Guides, engine: Engine, form: dict[str, object], temperature: float
) -> None:
    guide = guides.make(schema(form, strict=True))
    done = answers(engine, guide, n=3, temperature=temperature)
    assert {each.finish_reason for each in done} == {FinishReason.STOP}
    for each in done:
        jsonschema_rs.validate(form, json.loads(each.text))
    assert len({each.text for each in done}) == (1 if temperature == 0 else 3)
    (free,) = answers(engine, None, temperature=temperature, max_tokens=50)
    with pytest.raises(json.JSONDecodeError):
        json.loads(free.text)


def test_an_answer_that_is_cut_says_so_and_is_the_beginning_of_a_right_one(guides: Guides, engine: Engine) -> None:
    guide = guides.make(schema(PET))
    (whole,) = answers(engine, guide)
    (cut,) = answers(engine, guide, max_tokens=9)
    assert whole.finish_reason is FinishReason.STOP
    assert cut.finish_reason is FinishReason.LENGTH
    assert whole.text.startswith(cut.text)
    assert cut.text


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        ({"response_format": {"type": "regex", "pattern": r"[a-f]{3}/\d{2,4}"}}, r"[a-f]{3}/\d{2,4}"),
        ({"response_format": {"type": "grammar", "grammar": 'start: "a" mid "b"\nmid: "x" | "y" mid'}}, r"ay*xb"),
        ({"structured_outputs": {"choice": ["yes", "no/maybe", "(a) [b]"]}}, r"yes|no/maybe|\(a\) \[b\]"),
        ({"structured_outputs": {"regex": "(ab){2}"}}, r"(ab){2}"),
        ({"structured_outputs": {"json": '{"enum": [1, 2]}'}}, r"\s*[12]\s*"),
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_other_forms(guides: Guides, engine: Engine, wanted: dict[str, Any], pattern: str, temperature: float) -> None:
    guide = guides.make(wanted.get("response_format"), wanted.get("structured_outputs"))
    for done in answers(engine, guide, n=2, temperature=temperature):
        assert done.finish_reason is FinishReason.STOP
        assert re.fullmatch(pattern, done.text)


def test_any_json_object(guides: Guides, engine: Engine) -> None:
    guide = guides.make({"type": "json_object"})
    (done,) = answers(engine, guide, temperature=1.5, max_tokens=60)
    assert done.text.startswith("{")
    for text in ('{"a": [1, {"b": null}], "c": "é\\n"}', "{}"):
        fork = guide.fork() if guide is not None else None
        assert fork is not None
        for token in tiny_tokenizer().encode(text):
            assert fork.allowed()[token]
            fork.accept(token)
        assert fork.is_complete


@pytest.mark.parametrize("given", [None, {"type": "text"}])
def test_no_form_is_no_guide(guides: Guides, given: dict[str, object] | None) -> None:
    assert guides.make(given) is None


def test_a_token_that_is_not_allowed_is_refused_for_good(guides: Guides) -> None:
    guide = guides.make({"type": "regex", "pattern": "ab"})
    assert guide is not None
    (wrong,) = tiny_tokenizer().encode("b")
    assert not guide.allowed()[wrong]
    twin = guide.fork()
    with pytest.raises(ValueError, match="token"):
        guide.accept(wrong)
    with pytest.raises(ValueError, match="token"):
        guide.allowed()
    assert twin.allowed().any()


# -- what is refused ----------------------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, object]:
    inner: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "response_format.type must be one of"),
        ({"type": "xml"}, "response_format.type must be one of"),
        ({"type": "json_schema"}, "json_schema must be an object"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "json_schema must be an object"),
        (schema(PET, strict="yes"), "strict must be true or false"),  # type: ignore[arg-type]
        (schema([1]), "schema must be a JSON schema"),
        (schema({"type": "foo"}), "json_schema.schema can't be enforced: Invalid type: foo"),
        (schema({"$ref": "#/nope"}), "does not exist"),
        (schema({"$ref": "http://127.0.0.1:1/x"}), "does not fetch"),
        (schema({"type": "integer", "minimum": 5, "maximum": 1}), "Unsatisfiable"),
        (schema({"type": "array", "uniqueItems": True}, strict=True), "uniqueItems"),
        (schema({"const": float("nan")}), "not finite"),
        (schema({"type": "integer", "maximum": 10**400}), "json_schema.schema"),
        (schema(nested(70)), "nested deeper than 64"),
        (schema({"enum": ["x" * 70_000]}), "at most 65536"),
        ({"type": "regex", "pattern": "(a"}, "response_format.pattern can't be enforced: .*unclosed group"),
        ({"type": "regex", "pattern": ""}, "must be a text"),
        ({"type": "regex", "pattern": "\ud800"}, "surrogate"),
        ({"type": "regex", "pattern": r"[^\s\S]"}, "no text satisfies it"),
        ({"type": "grammar", "grammar": "start: foo"}, "unknown name"),
        ({"type": "grammar", "grammar": 5}, "response_format.grammar must be a text"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_said(guides: Guides, given: dict[str, object], fault: str) -> None:
    with pytest.raises(RequestError, match=fault) as error:
        guides.make(given)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "given",
    [{}, {"json": {}, "regex": "a"}, {"choice": []}, {"choice": [1]}, {"choice": ["a"] * 2000}, {"json": "{"}, []],
    ids=lambda value: str(value)[:40],
)
def test_extras_that_are_wrong(guides: Guides, given: Any) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        guides.make(None, given)


def test_only_one_field_says_what_form_it_is(guides: Guides) -> None:
    with pytest.raises(RequestError, match="both"):
        guides.make({"type": "json_object"}, {"regex": "a"})


def test_deep_ones_and_lenient_ones_are_fine(guides: Guides) -> None:
    assert guides.make(schema(nested(60))) is not None
    assert guides.make(schema({"type": "array", "uniqueItems": True})) is not None
    assert guides.make(schema({"oneOf": [{"type": "integer"}, {"minimum": 5}]})) is not None


# -- what is dangerous --------------------------------------------------------------------------------------------


def chain(length: int) -> dict[str, object]:
    """Each schema has one of the next, so that a compiler that follows them needs as many frames."""
    defs: dict[str, object] = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)}
    return {"$defs": {**defs, f"a{length}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def test_one_that_overflows_the_stack_or_never_ends_is_refused_and_the_next_one_is_served(guides: Guides) -> None:
    assert guides.make(schema(chain(20))) is not None
    with pytest.raises(RequestError, match="too complex"):
        guides.make(schema(chain(1000)))
    with pytest.raises(RequestError, match="too complex"):
        guides.make(schema({"type": "integer", "multipleOf": 1_000_003}))
    assert guides.make(schema({"type": "integer", "multipleOf": 3})) is not None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Guides, list[str]]]:
    """Guides, and the grammars that were tried for them."""
    opened, tried = Guides(tiny_tokenizer()), []
    monkeypatch.setattr(opened._check, "fault_of", lambda grammar: tried.append(grammar) or "")
    yield opened, tried
    opened.close()


def test_they_are_compiled_once_and_so_are_the_wrong_ones(counted: tuple[Guides, list[str]]) -> None:
    guides, tried = counted
    for _ in range(3):
        assert guides.make(schema(PET)) is not None
        with pytest.raises(RequestError, match="Invalid type"):
            guides.make(schema({"type": "foo"}))
    assert len(tried) == 2


def test_no_more_are_kept_than_fit(counted: tuple[Guides, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    guides, tried = counted
    monkeypatch.setattr(module, "MAX_GRAMMARS", 2)
    for pattern in ("a", "b", "a", "c", "a", "b"):  # b was dropped for c, as a had been used since
        guides.make({"type": "regex", "pattern": pattern})
        assert guides.num_kept <= 2
    assert len(tried) == 4
    monkeypatch.setattr(module, "MAX_GRAMMAR_BYTES", 0)
    assert guides.make({"type": "regex", "pattern": "d"}) is not None
    assert guides.num_kept == 0


def test_the_event_loop_goes_on_meanwhile_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    guides = Guides(tiny_tokenizer())
    monkeypatch.setattr(guides._check, "fault_of", lambda _: "" if may_go_on.wait(60) else "late")
    monkeypatch.setattr(module, "MAX_WAITING", 2)

    async def serve() -> None:
        forms = [{"type": "regex", "pattern": pattern} for pattern in "ab"]
        tasks = [asyncio.create_task(guides.guide(form)) for form in forms]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as refused:
            await guides.guide({"type": "regex", "pattern": "c"})
        assert refused.value.status == 503
        assert await guides.guide(None) is None
        assert not any(task.done() for task in tasks)
        may_go_on.set()
        assert None not in await asyncio.gather(*tasks)

    try:
        asyncio.run(serve())
    finally:
        may_go_on.set()
        guides.close()


# -- the tokenizer ------------------------------------------------------------------------------------------------


def test_one_guide_alone() -> None:
    guide = make_guide({"type": "regex", "pattern": "a"}, tiny_tokenizer())
    assert guide is not None
    assert guide.allowed().sum() == 1
    assert not guide.may_end


def test_a_tokenizer_that_can_not_be_read_is_named(counted: tuple[Guides, list[str]]) -> None:
    guides, _ = counted
    guides._tokenizer = Numbers()
    with pytest.raises(ConfigError, match="fast tokenizer"):
        guides.make({"type": "json_object"})
