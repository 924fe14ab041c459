"""Frames from a running server, over HTTP with the standard library. Knows no terminal.

Wrong addresses and keys are ConfigErrors, that a server is not there is a ServerAway; whoever watches decides whether
to try again. A frame that can't be read is a ServerAway too: the next connection begins with a whole one.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from kvpager.cli.palette import printable
from kvpager.errors import ConfigError, KVPagerError
from kvpager.metrics.frames import Frame, read_frame

_SECONDS = 45.0  # without a sign of life; a quiet stream has a ping every 15
_MAX_LINE = 64 << 20  # a whole frame of some ten million blocks
_MAX_ERROR = 64 << 10


class ServerAway(KVPagerError):
    """The server can't be reached, or went away. Try again later."""


@dataclass(frozen=True, slots=True)
class Address:
    """``path``: before the routes, without a slash at its end. ``shown``: as it may be printed."""

    is_secure: bool
    host: str
    port: int | None
    path: str

    @property
    def shown(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_secure else 'http'}://{host}{port}{self.path}"


def read_address(url: str) -> Address:
    """``http://host:port``, ``https://...``, or ``host:port``. Raises ConfigError."""
    wrong = f"{printable(url)!r} is not the address of a server; give one such as http://127.0.0.1:8000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        raise ConfigError(wrong) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not printable(url) == url[:200]:
        raise ConfigError(wrong)
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError("give the address alone, and the key with --key-file or in KVPAGER_API_KEY")
    return Address(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"))


class FrameSource:
    """The frames of one server. ``key``: of an operator, where the server asks for one."""

    def __init__(self, address: Address, key: str | None) -> None:
        self.address = address
        self._key = key

    def latest(self) -> Frame:
        """The memory now. Raises ConfigError, ServerAway."""
        with closing(self._connect()) as connection:
            return self._read(self._get(connection, "/v1/kv/frame").read().decode(), None)

    def frames(self) -> Iterator[Frame]:
        """As they come, until the server ends the stream. Raises ConfigError, ServerAway."""
        with closing(self._connect()) as connection:
            response = self._get(connection, "/v1/kv/stream")
            frame: Frame | None = None
            for name, data in self._events(response):
                if name == "gone":
                    raise ServerAway(f"{self.address.shown}: {_message(data.encode())}")
                if name == "frame":
                    frame = self._read(data, frame)
                    yield frame

    def _connect(self) -> HTTPConnection:
        at = self.address
        if at.is_secure:
            return HTTPSConnection(at.host, at.port, timeout=_SECONDS, context=ssl.create_default_context())
        return HTTPConnection(at.host, at.port, timeout=_SECONDS)

    def _get(self, connection: HTTPConnection, route: str) -> HTTPResponse:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        try:
            connection.request("GET", self.address.path + route, headers=headers)
            response = connection.getresponse()
            if response.status == 200:
                return response
            told = _message(response.read(_MAX_ERROR))
        except (OSError, HTTPException) as error:
            raise ServerAway(f"nothing answers at {self.address.shown} ({_reason(error)}); is it running?") from error
        raise self._refusal(response.status, told)

    def _refusal(self, status: int, told: str) -> KVPagerError:
        shown = self.address.shown
        if status == 401:
            wrong = "asks for a key" if self._key is None else "doesn't know this key"
            return ConfigError(f"{shown} {wrong}: name a file that has it with --key-file, or set KVPAGER_API_KEY")
        if status == 403:
            return ConfigError(f"{shown} shows its memory to operators only: use the key of one ({told})")
        if status == 404:
            return ConfigError(f"{shown} has no memory to show (404): is it a kvpager server, and the address right?")
        if status in (429, 503):
            return ServerAway(f"{shown} can't answer now ({status}): {told}")
        return ServerAway(f"{shown} answered with {status}: {told}")

    def _events(self, response: HTTPResponse) -> Iterator[tuple[str, str]]:
        """Name and data of server-sent events; lines that begin with a colon only keep the connection."""
        name = data = ""
        while True:
            try:
                line = response.readline(_MAX_LINE)
            except (OSError, HTTPException, ValueError) as error:
                raise ServerAway(f"lost {self.address.shown} ({_reason(error)})") from error
            if not line.endswith(b"\n"):
                raise ServerAway(f"{self.address.shown} has ended the stream")
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if not text:
                if name:
                    yield name, data
                name = data = ""
            elif text.startswith("event:"):
                name = text.removeprefix("event:").strip()
            elif text.startswith("data:"):
                data += text.removeprefix("data:").strip()

    def _read(self, text: str, before: Frame | None) -> Frame:
        try:
            return read_frame(text, before)
        except (ValueError, KeyError, TypeError) as error:
            raise ServerAway(f"what {self.address.shown} sends is no frame: {printable(error)}") from error


def _message(body: bytes) -> str:
    """Of an error as the server tells it."""
    try:
        return printable(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "it doesn't say why"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return printable(getattr(error, "strerror", None) or error or type(error).__name__)
