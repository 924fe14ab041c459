"""``kvpager serve`` as a process of its own over the real small model, and clients as processes beside it."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv-clients" / "bin"
KEY = "a-key-of-the-tests"
_START_SECONDS = 120


@contextmanager
def served(model: str, *flags: str) -> Iterator[str]:
    """The base URL of a server that wants KEY."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvpager.cli.main", "serve", model, "--port", str(port), *flags]
    with subprocess.Popen(command, env=os.environ | {"KVPAGER_API_KEY": KEY}) as process:
        try:
            _wait(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(60) == 0


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    stop_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < stop_at:
        assert process.poll() is None, "the server did not start"
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("the server is not ready")


def client(tool: str, *arguments: str, folder: Path, seconds: float = 300, offline: bool = True) -> str:
    """What a client prints. Skips, saying so, where it is not installed. ``offline``: it may ask no hub for files."""
    program = BIN / tool
    if not program.exists():
        pytest.skip(f"{tool} is not installed; make test-clients installs it")
    own = {"OPENAI_API_KEY": KEY, "HOME": str(folder), "LLM_USER_PATH": str(folder)}
    if offline:
        own |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    ended = subprocess.run(
        [str(program), *arguments],
        cwd=folder,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert ended.returncode == 0, f"{tool} failed:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    return ended.stdout
