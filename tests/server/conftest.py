"""A tiny model with a tokenizer and a chat template, and a server over it, for the whole session."""

from collections.abc import Iterator

import httpx
import pytest

from tests.cli.tiny_model import save_tiny_model
from tests.server.serving import Serving, serving


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="session")
def server(model: str) -> Iterator[Serving]:
    """For tests that leave it as they found it. Others open their own with ``serving``."""
    with serving(model) as opened:
        yield opened


@pytest.fixture
def client(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened
