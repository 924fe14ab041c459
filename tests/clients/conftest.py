"""One server for all clients."""

from collections.abc import Iterator

import pytest

from kvpager.models.source import resolve
from tests.clients.served import served


@pytest.fixture(scope="session")
def folder_of_model() -> str:
    return str(resolve("smollm2").path)


@pytest.fixture(scope="session")
def url(folder_of_model: str) -> Iterator[str]:
    with served(folder_of_model, "--dtype", "float32", "--served-name", "small", "--capacity", "1GiB") as opened:
        yield opened
