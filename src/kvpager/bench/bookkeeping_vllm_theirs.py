"""The process that drives vLLM's KVCacheManager for us: one line of JSON asks, one answers. Knows no figures."""

import json
import subprocess
from pathlib import Path
from typing import Any

from kvpager.errors import ConfigError

_SCRIPT = Path(__file__).parent / "peers" / "vllm_bookkeeping.py"
_PYTHON = Path(".venv-peers/vllm/bin/python")


class VllmBookkeeper:
    """A context; raises ConfigError where vLLM is not there."""

    def __init__(self, python: Path = _PYTHON, script: Path = _SCRIPT) -> None:
        if not python.exists():
            raise ConfigError(f"there is no {python}: `make peers` installs vLLM into an environment of its own")
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self.version = str(self._answer()["ready"])
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **values: object) -> dict[str, Any]:
        """What the operation ``do`` of the script answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ConfigError(
                f"vLLM's side ended with {self._process.wait()}; run {_SCRIPT.name} by hand to see why, "
                "or make its environment again with `make peers`"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def __enter__(self) -> "VllmBookkeeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
