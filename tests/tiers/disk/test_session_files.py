"""Named sessions: what is saved is loaded, by anyone with the folder and the key, and nothing else is."""

import os
import stat
from array import array
from pathlib import Path

import pytest

from kvpager.config import DiskTier
from kvpager.errors import ConfigError, WrongContent
from kvpager.prefix.hashing import Media, Scope
from kvpager.tiers.disk.examine import clear
from kvpager.tiers.disk.open import open_sessions
from kvpager.tiers.disk.session_files import Session, SessionFiles

SESSION = Session(
    array("i", [1, 2, 300_000]), Scope("tenant", "adapter", "7", (Media(1, bytes(range(32))),)), '["the cook: "]'
)
WAYS = {"plain": {}, "sealed": {"key_file": True}, "encrypted": {"key_file": True, "encrypt": True}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "kv"
    path.mkdir(mode=0o700)
    return path


def _sessions(folder: Path, key: bytes = bytes(range(32)), **ways: bool) -> SessionFiles:
    if ways.get("encrypt"):
        pytest.importorskip("cryptography", reason="the extra 'encryption' is not installed")
    if ways.pop("key_file", False):
        file = folder.parent / f"key-{key[0]}"
        file.touch(mode=0o600)
        file.write_bytes(key)
        return open_sessions(DiskTier(folder, "1MiB", key_file=file, **ways))
    return open_sessions(DiskTier(folder, "1MiB", **ways))


def _file(folder: Path) -> Path:
    [file] = folder.glob("session-*")
    return file


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_what_was_saved_is_loaded(folder: Path, ways: dict[str, bool]) -> None:
    _sessions(folder, **ways).save("the cook", SESSION)
    assert _sessions(folder, **ways).load("the cook") == SESSION
    assert _sessions(folder, **ways).load("the Cook") is None


def test_a_session_is_replaced_and_removed(folder: Path) -> None:
    sessions = _sessions(folder)
    sessions.save("a", SESSION)
    sessions.save("a", Session(array("i")))
    assert sessions.load("a") == Session(array("i"))
    assert sessions.remove("a")
    assert not sessions.remove("a")
    assert sessions.load("a") is None
    assert os.listdir(folder) == []


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a\0b", "n" * 300, "\ud800", "ü"])
def test_any_name_makes_the_same_kind_of_file(folder: Path, name: str) -> None:
    before = os.umask(0)
    try:
        _sessions(folder).save(name, SESSION)
    finally:
        os.umask(before)
    file = _file(folder)
    assert len(file.name) == len("session-") + 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert _sessions(folder).load(name) == SESSION


@pytest.mark.parametrize("name", ["", "n" * 1025])
def test_a_name_that_is_none(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="between 1 and 1024"):
        _sessions(folder).save(name, SESSION)


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_changed_bits_and_cuts_are_noticed(folder: Path, ways: dict[str, bool]) -> None:
    sessions = _sessions(folder, **ways)
    sessions.save("a", SESSION)
    content = _file(folder).read_bytes()
    for bit in range(0, 8 * len(content), 31):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        _file(folder).write_bytes(changed)
        with pytest.raises(WrongContent):
            sessions.load("a")
    for cut in (b"", content[:50], content[:-1], content + b"\0"):
        _file(folder).write_bytes(cut)
        with pytest.raises(WrongContent):
            sessions.load("a")
    _file(folder).write_bytes(content)
    assert sessions.load("a") == SESSION


def test_a_sealed_session_can_t_be_renamed_or_opened_with_another_key(folder: Path) -> None:
    sealed = _sessions(folder, key_file=True)
    sealed.save("a", SESSION)
    mine = _file(folder)
    sealed.save("b", SESSION)
    [other] = [file for file in folder.glob("session-*") if file != mine]
    other.write_bytes(mine.read_bytes())
    with pytest.raises(WrongContent, match="seal"):
        sealed.load("b")
    with pytest.raises(WrongContent, match="seal"):
        _sessions(folder, bytes(range(1, 33)), key_file=True).load("a")
    with pytest.raises(WrongContent, match="key file"):
        _sessions(folder).load("a")
    assert sealed.load("a") == SESSION


def test_an_encrypted_session_shows_nothing(folder: Path) -> None:
    for ways, shows in (({}, True), ({"key_file": True, "encrypt": True}, False)):
        _sessions(folder, **ways).save("a", SESSION)
        assert (b"the cook" in _file(folder).read_bytes()) is shows


def test_links_and_folders_of_others_are_refused(folder: Path, tmp_path: Path) -> None:
    sessions = _sessions(folder)
    sessions.save("a", SESSION)
    file = _file(folder)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="can't be opened"):
        sessions.load("a")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(WrongContent, match="no session file"):
        sessions.load("a")
    folder.chmod(0o755)
    with pytest.raises(ConfigError, match="open to other users"):
        sessions.load("a")


def test_a_reader_loads_and_does_not_save(folder: Path) -> None:
    _sessions(folder).save("a", SESSION)
    reader = _sessions(folder, read_only=True)
    assert reader.load("a") == SESSION
    with pytest.raises(ConfigError, match="read-only"):
        reader.save("a", SESSION)


def test_clearing_the_folder_removes_sessions_and_nothing_of_others(folder: Path) -> None:
    _sessions(folder).save("a", SESSION)
    (folder / f".{_file(folder).name}.{'0' * 16}.tmp").touch()
    (folder / "session-notes.txt").touch()
    clear(str(folder))
    assert sorted(os.listdir(folder)) == ["lock", "session-notes.txt"]
