"""A client of bare sockets: it can go away at any moment, and send what is no HTTP."""

import json
import socket
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit


class RawClient:
    """One connection. Leaving it closes it, whatever is still to come."""

    def __init__(self, url: str, timeout: float = 30) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._socket = socket.create_connection((address.hostname, address.port or 80), timeout=timeout)
        self._host = address.netloc

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def post(self, path: str, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self.send(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)

    def read(self, until: bytes = b"", most: int = 1 << 20) -> bytes:
        """What comes until ``until`` is in it, or the other side closes; a reset counts as closed."""
        found = b""
        while len(found) < most and not (until and until in found):
            try:
                part = self._socket.recv(1 << 16)
            except ConnectionError:
                break
            if not part:
                break
            found += part
        return found

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
