"""OpenAI's own client of the shared server."""

from collections.abc import Iterator

import openai
import pytest

from tests.server.serving import Serving


@pytest.fixture
def api(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def name(server: Serving) -> str:
    """Of the model."""
    return server.service.model_name
