import sys

import numpy as np
import pytest

from kvpager import ConfigError, MissingExtra
from kvpager.config.tiers import RemoteTier
from kvpager.tiers.remote.open import open_remote
from kvpager.tiers.remote.shown_url import shown_url
from tests.contracts.lower_tier import PAGE_BYTES, content, key, page

IDENTITY = bytes(32)


def test_the_shortest_way_to_a_remote_tier() -> None:
    store = open_remote(RemoteTier("memory:///", deadline=20.0), PAGE_BYTES, IDENTITY)
    slot = store.prepare_store(page(1))
    assert slot is not None
    assert store.write([slot], [content(1)]) == [None]
    store.complete_store(slot, None)
    slot = store.prepare_load(key(1))
    assert slot is not None
    into = np.zeros(PAGE_BYTES, np.uint8)
    store.complete_load(slot, None if isinstance(store.read([slot], [into])[0], int) else pytest.fail("no page"))
    assert (into == content(1)).all()
    store.close()


@pytest.mark.parametrize("url", ["redis://user:hidden@nowhere.invalid:6379/0", "rediss://:hidden@nowhere.invalid"])
def test_opening_asks_nobody(url: str) -> None:
    store = open_remote(RemoteTier(url, expire=60), PAGE_BYTES, IDENTITY)
    assert "hidden" not in str(store.statistics())
    store.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RemoteTier("http://:hidden@host"), "starts with one of redis://"),
        (RemoteTier("file:///etc"), "starts with one of"),
        (RemoteTier(""), "starts with one of"),
        (RemoteTier("memory:///", prefix="../"), "prefix"),
        (RemoteTier("memory:///", prefix="a//"), "prefix"),
        (RemoteTier("memory:///", prefix="/a/"), "prefix"),
        (RemoteTier("memory:///", prefix="no slash"), "prefix"),
        (RemoteTier("memory:///", prefix="a\n/"), "prefix"),
        (RemoteTier("memory:///", expire=60), "expire is for redis"),
        (RemoteTier("redis://host", expire=0), "at least one second"),
        (RemoteTier("memory:///", deadline=0.0), "more than 0"),
        (RemoteTier("memory:///", deadline=float("inf")), "at most 600 seconds"),
        (RemoteTier("memory:///", deadline=float("nan")), "at most 600 seconds"),
        (RemoteTier("memory:///", tries=0), "more than 0"),
        (RemoteTier("memory:///", believe=0.0), "more than 0"),
        (RemoteTier("memory:///", max_moving_bytes=0), "more than 0"),
    ],
    ids=lambda value: value.url + value.prefix if isinstance(value, RemoteTier) else value,
)
def test_options_that_make_no_sense_are_refused(options: RemoteTier, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        open_remote(options, PAGE_BYTES, IDENTITY)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(("url", "package"), [("redis://host", "redis"), ("memory:///", "obstore")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, url: str, package: str) -> None:
    open_remote(RemoteTier(url), PAGE_BYTES, IDENTITY).close()  # it is there
    for module in [name for name in sys.modules if name.startswith("kvpager.tiers.remote.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"kvpager\[remote\]") as missing:
        open_remote(RemoteTier(url), PAGE_BYTES, IDENTITY)
    assert missing.value.package == package


def test_a_url_is_shown_without_what_is_secret() -> None:
    assert shown_url("redis://user:p%40ss@host:6379/3?password=x#y") == "redis://host:6379/3"
    assert shown_url("s3://bucket/folder") == "s3://bucket/folder"
