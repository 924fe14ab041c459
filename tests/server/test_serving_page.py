"""The client that docs/serving.md shows gets an answer."""

import contextlib
import io
from pathlib import Path

from tests.server.serving import Serving
from tests.test_docs import blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_client_on_the_page(server: Serving) -> None:
    (block,) = [block for block in blocks_of(PAGE.read_text(encoding="utf-8")) if block.needs_server]
    code = block.body.replace("http://127.0.0.1:8000", server.url).replace('"smollm2"', repr(server.service.model_name))
    assert code.count(server.url) == 1
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), {})
    assert printed.getvalue()
