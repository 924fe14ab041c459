"""/health, /ready, /version: the only routes that answer without a key. They say nothing of the model."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from kvpager.server.service import Service, service_of
from kvpager.version import __version__

router = APIRouter()
_Service = Annotated[Service, Depends(service_of)]


@router.get("/health")
async def health(service: _Service) -> JSONResponse:
    now = service.thread.health
    return JSONResponse({"status": now.condition.value, "reason": now.reason}, 200 if now.is_alive else 503)


@router.get("/ready")
async def ready(service: _Service) -> JSONResponse:
    now = service.thread.health
    return JSONResponse({"status": now.condition.value, "reason": now.reason}, 200 if now.is_ready else 503)


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}
