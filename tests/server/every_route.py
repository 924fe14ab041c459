"""All paths that an application answers to, from the application itself rather than from its documents."""

import re
from collections.abc import Iterable, Iterator

from fastapi import FastAPI
from starlette.routing import BaseRoute


def every_path(app: FastAPI) -> list[str]:
    """Parameters are filled in with something."""
    return sorted({re.sub(r"\{[^}]*\}", "x", path) for path in _paths(app.routes)})


def _paths(routes: Iterable[BaseRoute]) -> Iterator[str]:
    """Routers that were included keep their own routes. A kind of route that this does not know fails the test."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _paths(inner.routes)
        else:
            yield route.path  # type: ignore[attr-defined]
