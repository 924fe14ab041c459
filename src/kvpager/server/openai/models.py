"""/v1/models: there is one."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from kvpager.server.errors import ApiError
from kvpager.server.service import Service, service_of

router = APIRouter()
_Service = Annotated[Service, Depends(service_of)]


@router.get("/v1/models")
async def models(service: _Service) -> dict[str, Any]:
    return {"object": "list", "data": [_own(service)]}


@router.get("/v1/models/{model:path}")
async def model(model: str, service: _Service) -> dict[str, Any]:
    check_model(service, model)
    return _own(service)


def _own(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started,
        "owned_by": "kvpager",
        "max_model_len": service.engine.max_request_tokens,
    }


def check_model(service: Service, name: str | None) -> str:
    """The name to answer with. Raises a 404 that names what there is. No name: the one there is."""
    if name is not None and name != service.model_name:
        raise ApiError(
            404, f"there is no model of that name here; there is {service.model_name!r}", param="model",
            code="model_not_found",
        )  # fmt: skip
    return service.model_name
