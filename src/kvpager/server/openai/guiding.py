"""The guide of an answer that is to have a form: what the client asks for, or a call of a tool where it must be one."""

from typing import Any

from kvpager.engine.guide import Guide
from kvpager.errors import ConfigError, RequestError
from kvpager.server.errors import ApiError
from kvpager.server.openai.fields import GenerationFields
from kvpager.server.service import Service


async def guide_of(service: Service, body: GenerationFields, *, call: dict[str, Any] | None = None) -> Guide | None:
    """``call``: the schema of a call that the answer must be. Raises ApiError 400 that names the field."""
    if call is not None:
        wanted: dict[str, Any] | None = {"type": "json_schema", "json_schema": {"schema": call}}
        return await _guide(service, "tools", wanted, None)
    wanted = None if body.response_format is None else body.response_format.as_json()
    extras = None if body.structured_outputs is None else body.structured_outputs.as_json()
    if (wanted is None or wanted["type"] == "text") and extras is None:
        return None
    return await _guide(service, "structured_outputs" if extras is not None else "response_format", wanted, extras)


async def _guide(
    service: Service, param: str, wanted: dict[str, Any] | None, extras: dict[str, Any] | None
) -> Guide | None:
    try:
        return await service.guides.guide(wanted, extras)
    except (RequestError, ConfigError) as error:
        raise ApiError(400, f"{param}: {error}", param=param) from None
