"""API keys: where they come from, and whose a key is. A key is kept as its SHA-256 only, and is never shown.

    # name   key                                operator: may see and manage what concerns all tenants
    team-a   sk-3vDkq0S8mJt0cWf1n7yHhXl2
    ops      sk-Zb9eTq4uKcR7wYp5sNdVgA1m        operator

A name may have several keys, so that one can be replaced by another while both are in use.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from kvpager.config.private_file import read_private
from kvpager.config.server_options import ServerOptions
from kvpager.errors import ConfigError
from kvpager.server.tenant import Tenant, named_tenant

VARIABLE = "KVPAGER_API_KEY"  # one key, of an operator
_VARIABLE_TENANT = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[!-~]{16,512}")
_MOST_KEYS = 1024
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    tenant: Tenant


class ApiKeys:
    """``named``: key to tenant."""

    def __init__(self, named: Mapping[str, Tenant] | None = None) -> None:
        self._known = [_Known(_digest(key.encode()), tenant) for key, tenant in (named or {}).items()]

    def tenant(self, key: bytes) -> Tenant | None:
        """Whose key it is. Compares with all of them, in a time that doesn't depend on which bytes are right."""
        digest, found = _digest(key), None
        for known in self._known:
            if hmac.compare_digest(known.digest, digest):
                found = known.tenant
        return found

    @property
    def num_tenants(self) -> int:
        return len({known.tenant.name for known in self._known})

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"<{len(self)} API keys: ***>"


def load_keys(file: Path | None, environ: Mapping[str, str]) -> ApiKeys:
    """Those of ``file`` and that of the environment. Raises ConfigError, without a key in it."""
    named = {} if file is None else _read(file)
    own = environ.get(VARIABLE, "")
    if own:
        if not _KEY.fullmatch(own):
            raise ConfigError(f"the key in {VARIABLE} must have 16 to 512 printable ASCII characters without spaces")
        named[own] = named_tenant(_VARIABLE_TENANT, is_operator=True)
    return ApiKeys(named)


def _read(path: Path) -> dict[str, Tenant]:
    lines = _content(path).splitlines()
    named: dict[str, Tenant] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        where = f"line {number} of the key file {path}"
        if len(fields) not in (2, 3) or fields[2:] not in ([], ["operator"]):
            raise ConfigError(f"{where}: write NAME KEY or NAME KEY operator")
        name, key = fields[:2]
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{where}: a name has 1 to 64 letters, digits, '.', '_' and '-'")
        if not _KEY.fullmatch(key):
            raise ConfigError(f"{where}: a key has 16 to 512 printable ASCII characters without spaces")
        if key in named:
            raise ConfigError(f"{where}: this key is there already; give each tenant one of its own")
        named[key] = named_tenant(name, is_operator=len(fields) == 3)
    if not named:
        raise ConfigError(f"the key file {path} has no key; write one line NAME KEY for each")
    if len(named) > _MOST_KEYS:
        raise ConfigError(f"the key file {path} has more than {_MOST_KEYS} keys")
    return named


def _content(path: Path) -> str:
    """Of a file that only its owner may read."""
    content = read_private(path, _MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"the key file {path} is too large")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"the key file {path} holds other characters than ASCII") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name: it may be anything
        return False


def check_bind(options: ServerOptions, has_keys: bool) -> None:
    """Raises ConfigError for an address that others reach while no key is asked for, unless the options allow it."""
    if not (has_keys or is_loopback(options.host) or options.allow_open_bind):
        raise ConfigError(
            f"{options.host or 'all addresses'} can be reached by others, and no API key is asked for: give "
            f"--api-keys FILE or {VARIABLE}, listen on 127.0.0.1, or say --allow-open-bind if anybody may use it"
        )
