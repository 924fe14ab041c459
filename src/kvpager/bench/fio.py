"""Runs fio, the usual measure of what a folder's storage gives. Knows its options and its JSON; nothing of tiers."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kvpager.errors import ConfigError

REMEDY = "fio is not installed: apt install fio"


def is_installed() -> bool:
    return shutil.which("fio") is not None


def version() -> str:
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class FioFile:
    """A file that ``jobs`` threads read or write with ``block_bytes`` a call, one call at a time each, from end to end
    of their part of a range. ``is_direct``: past the page cache."""

    path: Path
    file_bytes: int
    block_bytes: int
    jobs: int
    is_direct: bool

    def write(self, first: int, count: int) -> float:
        """Seconds to write ``count`` blocks from number ``first`` on."""
        return self._run("write", first, count)

    def read(self, first: int, count: int) -> float:
        return self._run("read", first, count)

    def _run(self, direction: str, first: int, count: int) -> float:
        share = -(-count // self.jobs) * self.block_bytes
        command = [
            "fio",
            "--name=pages",
            f"--filename={self.path}",
            f"--rw={direction}",
            f"--bs={self.block_bytes}",
            f"--filesize={self.file_bytes}",
            f"--offset={first * self.block_bytes}",
            f"--offset_increment={share}",
            f"--size={share}",
            f"--numjobs={self.jobs}",
            f"--direct={int(self.is_direct)}",
            "--ioengine=psync",
            "--thread",
            "--group_reporting",
            "--invalidate=1",
            "--fallocate=none",
            "--output-format=json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"fio failed: {(done.stderr or done.stdout).strip()[:500]}")
        found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][direction]
        moved, seconds = int(found["io_bytes"]), int(found["runtime"]) / 1e3
        return seconds * (count * self.block_bytes) / moved
