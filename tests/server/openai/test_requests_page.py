"""The page of the fields is what the models say."""

from pathlib import Path

from kvpager.server.openai.chat_request import ChatRequest
from kvpager.server.openai.completion_request import CompletionRequest
from kvpager.server.openai.requests_page import requests_page

PAGE = Path(__file__).parents[3] / "docs" / "requests.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == requests_page(), "run make docs"


def test_every_field_is_on_it_once() -> None:
    page = requests_page()
    for name in {*CompletionRequest.model_fields, *ChatRequest.model_fields}:
        assert page.count(f"| `{name}` |") + page.split("Accepted and ignored")[1].count(f"`{name}`") == 1
