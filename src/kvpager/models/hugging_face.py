"""The Hugging Face libraries: imported late, kept quiet, and their errors made ours.

Does not know what is loaded, or from where.
"""

import importlib
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from kvpager.errors import KVPagerError, MissingExtra, ModelError


def need(package: str, purpose: str) -> Any:
    """The module ``package``, imported now. Raises MissingExtra, naming ``purpose``, where it is not installed."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise MissingExtra(package, "hf", purpose) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No notices of transformers and nothing on sys.stderr inside: not all of its progress bars have a switch.

    Errors are exceptions and pass. Restores what was set before.
    """
    logging = need("transformers", "loading a model").utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Turns whatever goes wrong inside into a ModelError: ``what`` failed, the reason, and the ``remedy``.

    The libraries raise nearly every type of exception for a bad file, so nearly all are caught; only ours and a lack
    of memory pass unchanged.
    """
    try:
        yield
    except (KVPagerError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{what}: {first_line(error)}. {remedy}") from error


def first_line(error: BaseException) -> str:
    """The first line that says something, without its full stop; the exception's name where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__
