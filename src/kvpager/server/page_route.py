"""The page at ``/``: static files out of the folder ``page``, read once, under a policy that lets nothing else load.

Knows no frame and no engine: what the page shows it asks of /v1/kv/* like any other client.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.abc import Traversable
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from kvpager.server.errors import ApiError
from kvpager.server.tenant import require_operator

router = APIRouter(include_in_schema=False)

# Only files of this server: no inline script or style, no eval, no other host, no frame around the page.
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    tag: str  # of the content, for If-None-Match


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(_MEDIA_TYPES)):
            yield prefix + entry.name, entry


def _read(entry: Traversable) -> _File:
    content = entry.read_bytes()
    ending = entry.name[entry.name.rindex(".") :]
    return _File(content, _MEDIA_TYPES[ending], f'"{sha256(content).hexdigest()[:32]}"')


# The keys are all names that can be asked for: a path from outside never reaches the file system.
_FILES = {name: _read(entry) for name, entry in _walk(files("kvpager.server") / "page")}


def _is_known(tag: str, header: str) -> bool:
    """Whether If-None-Match names this content; a proxy may have made the tag a weak one."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in header.split(","))


def _answer(request: Request, name: str) -> Response:
    require_operator(request)
    file = _FILES.get(name)
    if file is None:
        raise ApiError(404, "the page has no such file", code="not_found")
    # Always asked again, so that an upgrade is never half seen; what has not changed costs no bytes.
    headers = _HEADERS | {"ETag": file.tag, "Cache-Control": "private, no-cache"}
    if _is_known(file.tag, request.headers.get("if-none-match", "")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


@router.get("/")
async def page(request: Request) -> Response:
    return _answer(request, "index.html")


@router.get("/page/{name:path}")
async def part_of_page(request: Request, name: str) -> Response:
    return _answer(request, name)
