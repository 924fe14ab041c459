"""Named sessions beside the pages of a disk tier: which tokens belong together, so that a restart can go on with them.

A session is a small file of token ids, scope and a note of its owner. The KV is not in it: pages are found by content.
The file's name is a digest of the session's, so that any name is legal and none can be read in the folder. Where the
tier seals its pages, sessions are sealed with the same key.

    offset  bytes
         0      8  "KVPSESSN"
         8      4  format version, 1            all numbers little-endian
        12      4  1: sealed, 0: not
        16      8  bytes of the body
        24     12  nonce of the seal, filled up with zeros
        36     32  tag of the seal, filled up with zeros
        68      8  CRC-64/NVME of bytes 0 to 67 and the body
        76         the body: UTF-8 JSON with tokens, scope and note, sealed where a key is used

A file is written beside its old one and replaces it when it is durable. Does not know what a note means.
"""

import hashlib
import json
import os
import re
import secrets
import stat
import struct
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from kvpager.checksum import checksum
from kvpager.errors import ConfigError, WrongContent
from kvpager.prefix.hashing import Media, Scope
from kvpager.tiers.disk.files import Files, SystemFiles, read_all, write_all
from kvpager.tiers.disk.folder import Folder
from kvpager.tiers.sealing import Seal

FORMAT_VERSION = 1
_MAGIC = b"KVPSESSN"
_HEAD = struct.Struct("<8sIIQ12s32s")
_CRC = struct.Struct("<Q")
_MOST_BYTES = 64 << 20  # of a file: more is none of ours
_MOST_NAME = 1024  # characters
_NO_SCOPE = Scope()
_NAME = re.compile(r"session-[0-9a-f]{64}|\.session-[0-9a-f]{64}\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True)
class Session:
    """``note``: whatever its owner needs to go on, such as the messages of a conversation."""

    tokens: "array[int]"
    scope: Scope = _NO_SCOPE
    note: str = ""


class SessionFiles:
    """The sessions in ``folder``, which is checked like a disk tier's. ``seal``: what the tier seals its pages with."""

    def __init__(
        self, folder: str, seal: Seal | None, *, read_only: bool, allow_shared: bool, files: Files | None = None
    ) -> None:
        self._files = files or SystemFiles()
        self._folder, self._seal = folder, seal
        self._read_only, self._allow_shared = read_only, allow_shared

    def save(self, name: str, session: Session) -> None:
        """Durable when it returns. Raises ConfigError where it can't be written: the old session is still there."""
        if self._read_only:
            raise ConfigError("sessions can't be saved: the disk tier is read-only")
        file_name = _file_name(name)
        content = self._pack(file_name, session)
        with self._opened() as folder:
            temporary = f".{file_name}.{secrets.token_hex(8)}.tmp"
            try:
                file = self._files.create(folder, temporary)
                try:
                    write_all(self._files, file, [content], 0)
                    self._files.fdatasync(file)
                finally:
                    self._files.close(file)
                self._files.rename(folder, temporary, file_name)
                self._files.sync_folder(folder)
            except OSError as error:
                raise ConfigError(f"the session can't be saved in {self._folder}: {error.strerror}") from error
            finally:
                with suppress(OSError):
                    self._files.unlink(folder, temporary)

    def load(self, name: str) -> Session | None:
        """None if there is none of that name. Raises WrongContent for a file that is not what was saved."""
        file_name = _file_name(name)
        with self._opened() as folder:
            try:
                file = self._files.open(folder, file_name, os.O_RDONLY)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise ConfigError(f"the session in {self._folder} can't be opened: {error.strerror}") from error
            try:
                return self._unpack(file_name, self._read(file))
            finally:
                self._files.close(file)

    def remove(self, name: str) -> bool:
        """Whether there was one of that name."""
        with self._opened() as folder:
            try:
                self._files.unlink(folder, _file_name(name))
            except FileNotFoundError:
                return False
        return True

    @contextmanager
    def _opened(self) -> Iterator[int]:
        folder = Folder(self._files, self._folder, 0, read_only=True, allow_shared=self._allow_shared)
        folder.enter()
        try:
            yield folder.fd
        finally:
            folder.leave()

    def _read(self, file: int) -> bytes:
        facts = self._files.stat(file)
        if not stat.S_ISREG(facts.st_mode) or not _HEAD.size + _CRC.size <= facts.st_size <= _MOST_BYTES:
            raise _damaged("it is no session file")
        content = np.empty(facts.st_size, np.uint8)
        if not read_all(self._files, file, [content], 0):
            raise _damaged("it ends too early")
        return content.tobytes()

    # -- bytes --------------------------------------------------------------------------------------------------

    def _pack(self, file_name: str, session: Session) -> np.ndarray:
        body = _body(session)
        nonce = tag = b""
        if self._seal is not None:
            sealed = self._seal.seal(np.frombuffer(body, np.uint8), _sealed_part(file_name, len(body)))
            body, nonce, tag = sealed.payload.tobytes(), sealed.nonce, sealed.tag
        head = _HEAD.pack(_MAGIC, FORMAT_VERSION, self._seal is not None, len(body), nonce, tag)
        return np.frombuffer(head + _crc(head + body) + body, np.uint8)

    def _unpack(self, file_name: str, content: bytes) -> Session:
        head, crc, body = content[: _HEAD.size], content[_HEAD.size :][: _CRC.size], content[_HEAD.size + _CRC.size :]
        magic, version, is_sealed, size, nonce, tag = _HEAD.unpack(head)
        if magic != _MAGIC:
            raise _damaged("it is no session file")
        if version != FORMAT_VERSION:
            raise WrongContent(f"the session file has format {version}; this version reads {FORMAT_VERSION}")
        if size != len(body) or crc != _crc(head + body):
            raise _damaged("it is not what was written")
        if is_sealed != (self._seal is not None):
            raise WrongContent("the session was saved with a key file and the tier has none, or the other way round")
        if self._seal is not None:
            body = self._opened_body(body, nonce, tag, file_name)
        return _session(body)

    def _opened_body(self, body: bytes, nonce: bytes, tag: bytes, file_name: str) -> bytes:
        seal, opened = self._seal, np.empty(len(body), np.uint8)
        assert seal is not None
        nonce, tag = nonce[: seal.nonce_bytes], tag[: seal.tag_bytes]
        seal.open(memoryview(body), nonce, tag, _sealed_part(file_name, len(body)), opened)
        return opened.tobytes()


def session_names(names: Iterable[str]) -> list[str]:
    """Those of a folder's files that hold sessions, or were to hold one when the process ended."""
    return [name for name in names if _NAME.fullmatch(name)]


def _file_name(name: str) -> str:
    if not name or len(name) > _MOST_NAME:
        raise ConfigError(f"a session's name has between 1 and {_MOST_NAME} characters")
    return f"session-{hashlib.sha256(b'kvpager.session' + name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _sealed_part(file_name: str, size: int) -> bytes:
    """What is sealed beside the body: nobody can give a session another one's name."""
    return _MAGIC + FORMAT_VERSION.to_bytes(4, "little") + size.to_bytes(8, "little") + file_name.encode()


def _crc(content: bytes) -> bytes:
    return _CRC.pack(checksum(np.frombuffer(content, np.uint8)))


def _body(session: Session) -> bytes:
    scope = session.scope
    content = {
        "tokens": session.tokens.tolist(),
        "salt": scope.salt,
        "adapter": scope.adapter,
        "adapter_version": scope.adapter_version,
        "media": [[media.position, media.digest.hex()] for media in scope.media],
        "note": session.note,
    }
    return json.dumps(content).encode()


def _session(body: bytes) -> Session:
    try:
        content = json.loads(body)
        media = tuple(Media(int(position), bytes.fromhex(digest)) for position, digest in content["media"])
        scope = Scope(content["salt"], content["adapter"], content["adapter_version"], media)
        return Session(array("i", content["tokens"]), scope, str(content["note"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise _damaged("its content can't be read") from error


def _damaged(what: str) -> WrongContent:
    return WrongContent(f"the session file is damaged: {what}")
