"""Names that clients give their requests and sessions: cleaned, so that they may be echoed, logged and shown.

They name nothing inside: two requests of the same id are two requests.
"""

import re
import secrets

from fastapi import Request
from starlette.datastructures import Headers

REQUEST_ID = "x-request-id"
SESSION_ID = "x-session-id"
_MOST = 128  # characters
_UNPRINTABLE = re.compile(r"[^!-~]")


def clean(name: str) -> str:
    """Printable ASCII without spaces, at most 128 of it."""
    return _UNPRINTABLE.sub("", name)[:_MOST]


def name_request(headers: Headers) -> str:
    """The client's id, or one of ours if there is nothing left of it."""
    return clean(headers.get(REQUEST_ID, "")) or f"req-{secrets.token_hex(12)}"


def request_id_of(request: Request) -> str:
    """What the answer's x-request-id says."""
    name: str = request.state.request_id
    return name


def session_of(request: Request) -> str:
    """What the client calls the conversation that this request is part of; perhaps nothing. Only a label."""
    return clean(request.headers.get(SESSION_ID, ""))
