"""Sessions by tenant and name, with the list of each tenant's, in the files of a disk tier. Knows no HTTP.

The files are named by digests (tiers/disk/session_files.py), so a tenant's list is kept as one more session, whose
note it is. A session is written before the list names it, and taken off the list after it is removed: after a crash a
session may be there that no list shows, or the other way round; both are found out when it is asked for.
"""

import json
import time
from array import array
from dataclasses import asdict, dataclass
from threading import Lock

from kvpager.errors import WrongContent
from kvpager.server.tenant import Tenant
from kvpager.tiers.disk.session_files import Session, SessionFiles

MOST_EACH = 256  # of one tenant


@dataclass(frozen=True, slots=True)
class Entry:
    """``saved``: unix seconds."""

    tokens: int
    saved: int


class TooMany(Exception):
    """The tenant has as many sessions as it may."""


class SessionBook:
    """Any thread may call; one call at a time reads and writes files."""

    def __init__(self, files: SessionFiles) -> None:
        self._files = files
        self._lock = Lock()

    def save(self, tenant: Tenant, name: str, session: Session) -> Entry:
        """Raises TooMany, and ConfigError where nothing can be written."""
        with self._lock:
            entries = self._list(tenant)
            if name not in entries and len(entries) >= MOST_EACH:
                raise TooMany
            self._files.save(_inner(tenant, name), session)
            entries[name] = Entry(len(session.tokens), int(time.time()))
            self._write(tenant, entries)
            return entries[name]

    def load(self, tenant: Tenant, name: str) -> Session | None:
        """Raises WrongContent for one that is damaged."""
        with self._lock:
            found = self._files.load(_inner(tenant, name))
            if found is None:
                self._strike(tenant, name)
            return found

    def remove(self, tenant: Tenant, name: str) -> bool:
        with self._lock:
            was_there = self._files.remove(_inner(tenant, name))
            self._strike(tenant, name)
            return was_there

    def entries(self, tenant: Tenant) -> dict[str, Entry]:
        with self._lock:
            return self._list(tenant)

    def _list(self, tenant: Tenant) -> dict[str, Entry]:
        try:
            found = self._files.load(_list_name(tenant))
            return {} if found is None else {name: Entry(**each) for name, each in json.loads(found.note).items()}
        except (WrongContent, ValueError, TypeError, AttributeError):
            return {}  # a damaged list begins anew: sessions are found by name all the same

    def _strike(self, tenant: Tenant, name: str) -> None:
        entries = self._list(tenant)
        if entries.pop(name, None) is not None:
            self._write(tenant, entries)

    def _write(self, tenant: Tenant, entries: dict[str, Entry]) -> None:
        note = json.dumps({name: asdict(entry) for name, entry in entries.items()})
        self._files.save(_list_name(tenant), Session(array("i"), note=note))


def _inner(tenant: Tenant, name: str) -> str:
    """Salts are 64 digits, or nothing: no two tenants give one name."""
    return f"kvpager.server/{tenant.salt}/{name}"


def _list_name(tenant: Tenant) -> str:
    return f"kvpager.server/{tenant.salt}"
