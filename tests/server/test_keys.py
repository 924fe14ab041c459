"""API keys: read from a private file or the environment, never shown, all compared."""

import hmac
from pathlib import Path

import pytest

from kvpager.config.server_options import ServerOptions
from kvpager.errors import ConfigError
from kvpager.server.keys import VARIABLE, ApiKeys, check_bind, is_loopback, load_keys
from kvpager.server.tenant import Tenant, named_tenant

FIRST, SECOND, THIRD = "sk-first-0123456789", "sk-second-012345678", "sk-third-0123456789"


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = write(tmp_path, f"# ours\n\nteam-a {FIRST}\n\tteam-a   {SECOND} \nops {THIRD} operator\n")
    keys = load_keys(path, {})
    assert keys.tenant(FIRST.encode()) == keys.tenant(SECOND.encode()) == named_tenant("team-a", is_operator=False)
    operator = keys.tenant(THIRD.encode())
    assert operator is not None
    assert operator.is_operator
    assert (len(keys), keys.num_tenants) == (3, 2)
    for wrong in (b"", FIRST[:-1].encode(), FIRST.encode() + b" ", FIRST.upper().encode(), b"\xff" * 16):
        assert keys.tenant(wrong) is None


def test_a_key_of_the_environment_is_an_operators(tmp_path: Path) -> None:
    assert len(load_keys(None, {})) == 0
    keys = load_keys(write(tmp_path, f"team-a {FIRST}"), {VARIABLE: SECOND})
    assert keys.tenant(SECOND.encode()) == named_tenant("default", is_operator=True)
    assert keys.tenant(FIRST.encode()) == named_tenant("team-a", is_operator=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FIRST, "NAME KEY"),
        (f"a {FIRST} admin", "NAME KEY"),
        (f"a/b {FIRST}", "a name has"),
        (f"-a {FIRST}", "a name has"),
        ("a short-key", "a key has"),
        (f"a {FIRST}\nb {FIRST}", "line 2.*there already"),
        ("# nobody\n", "has no key"),
        (f"a {FIRST}é", "ASCII"),
        ("".join(f"t{i} {FIRST}{i}\n" for i in range(1025)), "more than"),
        ("#" * (2 << 20), "too large"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_key(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        load_keys(write(tmp_path, text), {})
    assert "sk-" not in str(refused.value)
    assert "short-key" not in str(refused.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    for mode in (0o640, 0o604, 0o620, 0o644):
        with pytest.raises(ConfigError, match="chmod 600"):
            load_keys(write(tmp_path, f"a {FIRST}", mode), {})
    assert len(load_keys(write(tmp_path, f"a {FIRST}", 0o400), {})) == 1
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="key file"):
            load_keys(path, {})


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ApiKeys({key: Tenant(key[3:8]) for key in (FIRST, SECOND, THIRD)})
    compared: list[int] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append(len(left))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given in (FIRST.encode(), THIRD.encode(), b"", b"x" * 100_000):
        compared.clear()
        keys.tenant(given)
        assert compared == [32, 32, 32]  # digests, whatever came, and no end at the first that fits


def test_keys_are_not_shown() -> None:
    keys = ApiKeys({FIRST: Tenant("a")})
    assert repr(keys) == "<1 API keys: ***>"
    assert FIRST not in str([getattr(keys, name) for name in vars(keys)])


def test_an_open_bind_needs_keys() -> None:
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        assert is_loopback(host)
        check_bind(ServerOptions(host=host), has_keys=False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", "localhost.example.org"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="--api-keys"):
            check_bind(ServerOptions(host=host), has_keys=False)
        check_bind(ServerOptions(host=host), has_keys=True)
        check_bind(ServerOptions(host=host, allow_open_bind=True), has_keys=False)
