"""The static files: how they are served, and that they refer to nothing outside the server."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from kvpager.config.server_options import ServerOptions
from kvpager.server import page_route
from kvpager.server.app import create_app
from kvpager.server.errors import ApiError, answer_error
from kvpager.server.guard import Guard
from kvpager.server.keys import ApiKeys
from kvpager.server.tenant import named_tenant

_FOLDER = Path(str(files("kvpager.server") / "page"))
_OWN = sorted(
    path
    for path in _FOLDER.rglob("*")
    if path.suffix in (".html", ".css", ".js", ".svg") and "vendor" not in path.parts
)
_ALL = sorted(path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*") if path.is_file())
_NAMESPACE = "http://www.w3.org/2000/svg"  # a name, never fetched


_KEYS = {"k" * 16: named_tenant("ops", is_operator=True), "t" * 16: named_tenant("team", is_operator=False)}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with opened_client(with_keys=False) as opened:
        yield opened


@contextmanager
def opened_client(*, with_keys: bool) -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(page_route.router)
    app.add_exception_handler(ApiError, answer_error)
    app.add_middleware(Guard, options=ServerOptions(), keys=ApiKeys(_KEYS if with_keys else {}))
    with TestClient(app, base_url="http://127.0.0.1") as opened:
        yield opened


def test_the_page_comes_with_a_policy_that_lets_only_this_server_in(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", _ALL)
def test_every_file_is_served_under_the_same_policy(client: TestClient, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.content == (_FOLDER / name).read_bytes()
    assert answer.headers["content-security-policy"] == client.get("/").headers["content-security-policy"]


@pytest.mark.parametrize("header", ["{}", "W/{}", '"other", {}', "*"])
def test_what_has_not_changed_is_not_sent_again(client: TestClient, header: str) -> None:
    tag = client.get("/").headers["etag"]
    again = client.get("/", headers={"If-None-Match": header.format(tag)})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == tag
    assert client.get("/", headers={"If-None-Match": '"another"'}).status_code == 200


@pytest.mark.parametrize("name", ["../page_route.py", "%2e%2e/page_route.py", "js/../../app.py", "nothing.js", ""])
def test_no_other_file_can_be_asked_for(client: TestClient, name: str) -> None:
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 404
    assert b"import" not in answer.content
    assert client.get("/page/js/main.js").status_code == 200


@pytest.mark.parametrize("path", ["/", "/page/js/main.js"])
def test_with_keys_it_is_for_operators(path: str) -> None:
    with opened_client(with_keys=True) as client:
        assert client.get(path).status_code == 401
        assert "Basic" in client.get(path).headers["www-authenticate"]
        assert client.get(path, auth=("team", "t" * 16)).status_code == 403
        assert client.get(path, auth=("ops", "k" * 16)).status_code == 200


@pytest.mark.parametrize("path", _OWN, ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere(path: Path) -> None:
    text = path.read_text().replace(_NAMESPACE, "")
    assert not re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+|\bdata:[a-z]+/|@import", text)


@pytest.mark.parametrize("path", _OWN, ids=lambda path: path.name)
def test_nothing_needs_more_than_the_policy_allows(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r"\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)
    if path.suffix == ".html":
        assert not re.findall(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text)
    elif path.suffix == ".js":
        assert not re.findall(r"setAttribute\(\s*[\"']style|\bstyle:", text)


def test_what_the_files_refer_to_is_there() -> None:
    """Positive: what the page names is served. (A module that is missing would show in the browser's tests.)"""
    named = {name for path in _OWN for name in re.findall(r'"(/page/[^"]+)"', path.read_text())}
    assert "/page/js/main.js" in named
    assert {name.removeprefix("/page/") for name in named} <= set(_ALL)
    for path in _FOLDER.glob("js/*.js"):
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_licences_lie_beside_what_was_made_elsewhere() -> None:
    for folder in (_FOLDER / "vendor").iterdir():
        assert any(path.name.startswith("LICENSE") for path in folder.iterdir()), folder.name


def test_own_files_stay_small() -> None:
    for path in _OWN:
        assert len(path.read_text().splitlines()) <= 400, path.name


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_option_page_decides(is_wanted: bool) -> None:
    app = create_app(lambda: pytest.fail("no engine is needed"), ServerOptions(page=is_wanted))
    answer = TestClient(app, base_url="http://127.0.0.1").get("/")  # without its lifespan: nothing is opened
    assert answer.status_code == (200 if is_wanted else 404)
