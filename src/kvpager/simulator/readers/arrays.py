"""A Trace as it is, in numpy's .npz format: read in no time, where the original takes seconds."""

import zipfile
from pathlib import Path

import numpy as np

from kvpager.errors import ConfigError
from kvpager.simulator.readers.lines import TraceError
from kvpager.simulator.trace import Trace

MAGIC = b"PK\x03\x04"
_ARRAYS = ("first", "pages", "parent", "times", "input_tokens", "output_tokens", "stop", "has_partial_tail")


def write_arrays(trace: Trace, path: str | Path) -> None:
    """Writes a new file ``path``, which should end in .npz."""
    arrays = {name: getattr(trace, name) for name in _ARRAYS}
    with Path(path).open("xb") as file:
        np.savez(file, name=np.array(trace.name), page_tokens=np.array(trace.page_tokens), **arrays)


def read_arrays(path: Path) -> Trace:
    """Raises TraceError for a file that is damaged or holds anything else."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in _ARRAYS}
            return Trace(name=str(arrays["name"]), page_tokens=int(arrays["page_tokens"]), **found)
    except (OSError, KeyError, ValueError, TypeError, zipfile.BadZipFile, ConfigError) as error:
        raise TraceError(f"trace {path} can't be read: {error}") from error
