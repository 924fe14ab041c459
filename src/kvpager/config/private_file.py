"""Reads a file of secrets that only its owner may read. Does not know what they mean; none of it is in an error."""

import os
import stat
from pathlib import Path

from kvpager.errors import ConfigError


def read_private(path: str | Path, most_bytes: int) -> bytes:
    """The first ``most_bytes`` of a key file. Raises ConfigError for one that can't be read or is open to others."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
    except OSError as error:
        raise ConfigError(f"can't read the key file {path}: {error.strerror}") from error
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"the key file {path} is not a file")
        if found.st_mode & 0o077:
            raise ConfigError(f"the key file {path} is open to others (mode {found.st_mode & 0o777:04o}): chmod 600 it")
        return os.read(file, most_bytes)
    finally:
        os.close(file)
