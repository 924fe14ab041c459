"""Tiers in one line of text: what is read, and that each mistake is named with its remedy."""

import pytest

from kvpager.config.tier_text import parse_tier
from kvpager.config.tiers import DiskTier, HostTier, RemoteTier, TierOptions, check_order
from kvpager.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("host=8GiB", HostTier("8GiB")),
        ("host=40%", HostTier("40%")),
        ("host=auto", HostTier()),
        ("host=auto,exclusive", HostTier(exclusive=True)),
        ("host=8GiB,exclusive=false", HostTier("8GiB")),
        ("disk=/kv,size=1GiB,exclusive", DiskTier("/kv", "1GiB", exclusive=True)),
        ("host", HostTier()),
        (" HOST = 8 GiB ", HostTier("8 GiB")),
        ("disk=/kv,size=200GiB", DiskTier("/kv", "200GiB")),
        ("disk=/kv, size=1TB, read_only", DiskTier("/kv", "1TB", read_only=True)),
        (
            "disk=/a b/k=v,size=1g,key_file=/key,encrypt=true,compress=false",
            DiskTier("/a b/k=v", "1g", key_file="/key", encrypt=True),
        ),
        ("remote=redis://127.0.0.1:6379/0", RemoteTier("redis://127.0.0.1:6379/0")),
        (
            "remote=s3://bucket/kv?region=x,deadline=0.5,tries=2,prefix=kv/,believe=60,max_moving_bytes=1MiB",
            RemoteTier("s3://bucket/kv?region=x", 0.5, 2, "kv/", believe=60.0, max_moving_bytes=1 << 20),
        ),
        ("remote=redis://h/0,expire=3600", RemoteTier("redis://h/0", expire=3600)),
        ("remote=redis://h/0,key_file=/k,compress", RemoteTier("redis://h/0", key_file="/k", compress=True)),
        ("disk=/kv,size=1GiB,direct=auto,allow_shared", DiskTier("/kv", "1GiB", allow_shared=True)),
        ("disk=/kv,size=1GiB,direct=false", DiskTier("/kv", "1GiB", direct=False)),
    ],
)
def test_a_tier_is_read(text: str, tier: TierOptions) -> None:
    assert parse_tier(text) == tier


def test_a_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    assert parse_tier("disk=~/kv,size=1GiB,key_file=~/key") == DiskTier("/h/kv", "1GiB", key_file="/h/key")


@pytest.mark.parametrize(
    ("text", "fault", "remedy"),
    [
        ("", "no known kind", "write 'host=8GiB'"),
        ("dsk=/kv", "no known kind", "did you mean 'disk'?"),
        ("/kv", "no known kind", "write 'host=8GiB'"),
        ("host=lots", "size 'lots' can't be read", "write 'host=8GiB', 'host=40%' or 'host=auto'"),
        ("host=0", "less than one byte", "write 'host=8GiB'"),
        ("host=8GiB,size=1", "no setting 'size'", "write 'host=8GiB'"),
        ("host=8GiB,exclusiv", "no setting 'exclusiv'", "did you mean 'exclusive'?"),
        ("disk", "needs a folder", "write 'disk=FOLDER,size=200GiB'"),
        ("disk=/kv", "needs a limit", "write 'disk=FOLDER,size=200GiB'"),
        ("disk=/kv,size", "'size' needs a value", "write 'size=VALUE'"),
        ("disk=/kv,size=80%", "'size' can't be '80%'", "give it in bytes"),
        ("disk=/kv,sise=8GiB", "no setting 'sise'", "did you mean 'size'?"),
        ("disk=/kv,size=1GiB,size=2GiB", "'size' is given twice", "leave one out"),
        ("disk=/kv,size=1GiB,read_only=maybe", "'read_only' can't be 'maybe'", "stands alone"),
        ("disk=/kv,size=1GiB,", "no setting ''", "known are size, read_only"),
        ("disk=/kv,size=1GiB,encrypt", "encrypts with a key", "key_file=FILE"),
        ("remote=redis://h/0,encrypt", "encrypts with a key", "key_file=FILE"),
        ("remote=127.0.0.1", "needs a URL", "redis://HOST:6379/0"),
        ("remote=redis://h/0,deadline=-1", "'deadline' can't be '-1'", "above 0"),
        ("remote=redis://h/0,deadline=soon", "'deadline' can't be 'soon'", "a number of seconds above 0"),
        ("remote=redis://h/0,tries=0", "'tries' can't be '0'", "whole number above 0"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(text: str, fault: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tier(text)
    assert fault in str(caught.value)
    assert remedy in str(caught.value)


def test_tiers_are_in_order_and_one_of_each_kind() -> None:
    host, disk, remote = HostTier("1GiB"), DiskTier("/kv", "1GiB"), RemoteTier("redis://h/0")
    assert check_order([host, disk, remote]) == (host, disk, remote)
    assert check_order([disk]) == (disk,)
    with pytest.raises(ConfigError, match="nearest first: host, then disk"):
        check_order([disk, host])
    with pytest.raises(ConfigError, match="at most once"):
        check_order([host, disk, disk])
    with pytest.raises(ConfigError, match="not 'host=1GiB'"):
        check_order(["host=1GiB"])
