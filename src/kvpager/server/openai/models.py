"""/v1/models."""

from typing import Annotated

from fastapi import APIRouter, Depends

from kvpager.server.errors import ApiError
from kvpager.server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models")
async def models(service: Annotated[Service, Depends(service_of)]) -> dict[str, object]:
    own = {"id": service.model_name, "object": "model", "created": service.started, "owned_by": "kvpager"}
    return {"object": "list", "data": [own | {"max_model_len": service.engine.max_request_tokens}]}


def check_model(service: Service, name: str | None) -> str:
    """Raises a 404 that names what there is."""
    if name is not None and name != service.model_name:
        raise ApiError(
            404, f"there is no model of that name here; there is {service.model_name!r}", param="model",
            code="model_not_found",
        )  # fmt: skip
    return service.model_name
