"""Real servers on free ports of this machine, and a proxy in front of them that breaks connections as it is told to."""

import logging
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

from kvpager.tiers.remote.obstore_store import ObstoreStore

BUCKET = "pages"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[int]:
    """The port of a Redis (or Valkey) server that keeps nothing."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("there is no redis-server and no valkey-server here")
    port = _free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "Ready to accept connections" in line:
                    break
            else:
                raise RuntimeError("the Redis server did not start")
            yield port
        finally:
            process.terminate()
            process.stdout.read()


@contextmanager
def s3_server() -> Iterator[int]:
    """The port of an S3 server with the bucket BUCKET."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    try:
        port = int(server.get_host_and_port()[1])
        with urlopen(Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")):
            yield port
    finally:
        server.stop()


def s3_store(port: int, host: str = "127.0.0.1", longest: float = 20.0) -> ObstoreStore:
    return ObstoreStore(
        f"s3://{BUCKET}/folder",
        longest,
        config={
            "endpoint": f"http://{host}:{port}",
            "access_key_id": "name",
            "secret_access_key": "hidden",
            "region": "us-east-1",
        },
        client_options={"allow_http": True},
    )


class FaultProxy:
    """Stands before a server. ``fault``: "" passes all on; "silent" accepts and never answers; "drip" sends a byte now
    and then; "reset" breaks off after ``RESET_AFTER`` bytes; "reply" answers everything with ``reply``."""

    RESET_AFTER = 1000
    DRIP = 0.02  # seconds a byte

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = Lock()
        self._open: list[socket.socket] = []
        self._stop = Event()
        self._fault, self._reply = "", b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        Thread(target=self._accept, daemon=True).start()

    def set(self, fault: str, reply: bytes = b"") -> None:
        """From now on. Breaks the connections there are."""
        with self._lock:
            self._fault, self._reply = fault, reply
            self._stop.set()
            self._stop = Event()
            for sock in self._open:
                _shut(sock)
            self._open.clear()

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.set("silent")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.append(client)
                self.connections += 1
                job = (client, self._fault, self._reply, self._stop)
            Thread(target=self._serve, args=job, daemon=True).start()

    def _serve(self, client: socket.socket, fault: str, reply: bytes, stop: Event) -> None:
        with client:
            if fault in ("silent", "reply"):
                while _received(client):
                    if fault == "reply":
                        _send(client, reply)
                return
            with socket.create_connection(("127.0.0.1", self._server_port)) as server:
                Thread(target=_pass_on, args=(client, server), daemon=True).start()
                self._answer(client, server, fault, stop)

    def _answer(self, client: socket.socket, server: socket.socket, fault: str, stop: Event) -> None:
        sent = 0
        while data := _received(server):
            if fault == "reset" and sent + len(data) > self.RESET_AFTER:
                _send(client, data[: self.RESET_AFTER - sent])
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
                client.shutdown(socket.SHUT_RD)  # wakes the thread that reads, which would keep it from closing
                _shut(server)
                return
            if fault != "drip":
                _send(client, data)
            for byte in data if fault == "drip" else b"":
                if stop.wait(self.DRIP) or not _send(client, bytes([byte])):
                    return
            sent += len(data)
        _shut(client)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    while data := _received(source):
        if not _send(target, data):
            break
    _shut(target)


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except OSError:
        return b""


def _send(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
