"""What the log keeps to itself."""

import io
import logging
import sys
from collections.abc import Iterator

import pytest

from kvpager.errors import InvariantError
from kvpager.server.log_filter import HideContent, hide_content, trace_without_content

MARKER = "zq7"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler with the filter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(HideContent())
    loggers = [logging.getLogger(name) for name in ("uvicorn.access", "kvpager.tested")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield stream
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def fail() -> None:
    try:
        raise KeyError(MARKER)
    except KeyError as error:
        raise ValueError(f"can't use {MARKER}") from error


def test_lines_of_access_have_no_query(written: io.StringIO) -> None:
    line = '%s - "%s %s HTTP/%s" %d'
    logging.getLogger("uvicorn.access").info(line, "127.0.0.1:1", "GET", f"/v1/models?key={MARKER}", "1.1", 200)
    assert written.getvalue() == '127.0.0.1:1 - "GET /v1/models HTTP/1.1" 200\n'


def test_errors_say_where_and_not_what(written: io.StringIO) -> None:
    log = logging.getLogger("kvpager.tested")
    try:
        fail()
    except ValueError:
        log.exception("it failed")
        assert MARKER not in written.getvalue()
        assert "ValueError at test_log_filter.py" in written.getvalue()
        assert "because of KeyError at test_log_filter.py" in written.getvalue()
        log.debug("all of it", exc_info=sys.exc_info())
        assert f"can't use {MARKER}" in written.getvalue()


def test_our_own_bugs_are_told_whole() -> None:
    assert trace_without_content(InvariantError("5 blocks, not 6")).startswith("InvariantError (5 blocks, not 6) at")


def test_every_handler_hides_once() -> None:
    handler = logging.NullHandler()
    logger = logging.getLogger("kvpager")
    logger.addHandler(handler)
    others = {each: list(each.filters) for each in logging.getLogger().handlers}
    last = logging.lastResort
    assert last is not None
    before = list(last.filters)
    try:
        hide_content()
        hide_content()
        assert [type(each) for each in handler.filters] == [HideContent]
    finally:
        logger.removeHandler(handler)
        last.filters = before
        for each, filters in others.items():
            each.filters = filters
