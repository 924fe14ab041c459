"""The form that an answer is to have, as clients say it: a JSON schema, a regular expression, one of several texts.

Types and limits alone. What a schema means, and whether it can be enforced, says server/grammars.py.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from kvpager.server.openai.limits import MAX_ALTERNATIVES, MAX_SCHEMA, fault

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def _not_too_long(schema: dict[str, Any]) -> dict[str, Any]:
    if len(str(schema)) > MAX_SCHEMA:
        raise fault(f"the schema is longer than {MAX_SCHEMA} characters")
    return schema


JsonSchema = Annotated[dict[str, Any], AfterValidator(_not_too_long)]
_Pattern = Annotated[str, Field(min_length=1, max_length=MAX_SCHEMA)]


class NamedSchema(BaseModel):
    """``strict``: a schema that can't be enforced to the letter is refused."""

    model_config = STRICT

    name: Annotated[str, Field(max_length=64)] | None = None
    description: Annotated[str, Field(max_length=4096)] | None = None
    schema_: Annotated[JsonSchema, Field(alias="schema")]
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """``regex`` and ``grammar`` are not OpenAI's."""

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: NamedSchema | None = None
    pattern: _Pattern | None = None
    grammar: _Pattern | None = None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        fields = (("json_schema", "json_schema"), ("regex", "pattern"), ("grammar", "grammar"))
        for kind, name in fields:
            if (self.type == kind) != (getattr(self, name) is not None):
                raise fault(f"the field '{name}' belongs to the type '{kind}', and to it alone")
        return self

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)


class StructuredOutputs(BaseModel):
    """The same as vLLM's clients say it: one of the fields."""

    model_config = STRICT

    json_: Annotated[JsonSchema | _Pattern | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: _Pattern | None = None
    choice: Annotated[list[_Pattern], Field(min_length=1, max_length=MAX_ALTERNATIVES)] | None = None
    grammar: _Pattern | None = None

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True, exclude_none=True)
