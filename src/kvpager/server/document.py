"""The OpenAPI document, /openapi.json: that of the routes, and which of them ask for a key."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from kvpager.server.guard import LIVENESS


def describe(app: FastAPI) -> None:
    """The document is made when it is first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
            schemes["key"] = {"type": "http", "scheme": "bearer", "description": "where keys are in use"}
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    operation["security"] = [] if path in LIVENESS else [{"key": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
