"""``kvpager serve`` as a process of its own, for tests of signals and of what it prints."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

_START_SECONDS = 150  # it loads torch, on a machine that has other things to do


class Process:
    """``out`` and ``err``: what it has printed so far."""

    def __init__(self, *argv: str, env: dict[str, str] | None = None) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("KVPAGER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvpager.cli.main", "serve", *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ | {"OMP_NUM_THREADS": "1"} | (env or {}),
        )
        self.pid = self._process.pid
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self._process.stdout), ("err", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str, stream: Iterator[str]) -> None:
        for line in stream:
            self._lines[name].append(line)

    @property
    def out(self) -> str:
        return "".join(self._lines["out"])

    @property
    def err(self) -> str:
        return "".join(self._lines["err"])

    def wait_for(self, text: str) -> str:
        """Until it has printed a line with ``text``; the line."""
        stop_at = time.monotonic() + _START_SECONDS
        while True:
            for line in (*self._lines["out"], *self._lines["err"]):
                if text in line:
                    return line
            assert self._process.poll() is None, f"it ended: {self.err}"
            assert time.monotonic() < stop_at, f"it never said {text!r}: {self.err}"
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self, seconds: float) -> int:
        """Its exit code."""
        code = self._process.wait(seconds)
        for reader in self._readers:
            reader.join(60)
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(60)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def serve_process(*argv: str, env: dict[str, str] | None = None) -> Iterator[tuple[Process, str]]:
    """A server that has started, and its URL. ``--port 0`` is given; a busy machine is no stalled engine."""
    process = Process(*argv, "--port", "0", "--stall-seconds", "600", env=env)
    try:
        yield process, process.wait_for("  api ").split()[1].removesuffix("/v1")
    finally:
        process.kill()


def listening(pid: int) -> list[tuple[str, int]]:
    """Address and port, as in /proc/net/tcp, of all TCP sockets on which a process listens."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            own.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16)))
    return found


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def wait_until(url: str, status: int, path: str = "/ready", seconds: float = 30) -> httpx.Response:
    stop_at = time.monotonic() + seconds
    while (response := httpx.get(url + path, timeout=60)).status_code != status:
        assert time.monotonic() < stop_at, f"{path} still says {response.status_code}"
        time.sleep(0.02)
    return response
