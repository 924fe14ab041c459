"""The bytes of a file that may be packed with Zstandard, told by its first bytes."""

import io
from pathlib import Path
from typing import IO, Any, cast

from kvpager.errors import MissingExtra

_MAGIC = b"\x28\xb5\x2f\xfd"
_WINDOW = 1 << 27  # bytes: files packed with `zstd --long` need it
_PIECE = 1 << 16  # packed bytes unpacked at once


def open_bytes(path: Path) -> IO[bytes]:
    """Raises OSError, also while reading, where the packed data is damaged; MissingExtra without the package."""
    file = path.open("rb")
    is_packed = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    if not is_packed:
        return file
    try:
        import zstandard
    except ImportError as error:
        file.close()
        raise MissingExtra("zstandard", "zstd", f"reading the packed trace {path.name}") from error
    return io.BufferedReader(cast("io.RawIOBase", _Unpacked(file, zstandard)), 1 << 20)


class _Unpacked(io.RawIOBase):
    """All frames of a file, one behind the other. A file that was cut short is an error, not an early end."""

    def __init__(self, file: IO[bytes], zstandard: Any) -> None:
        self._file = file
        self._zstandard = zstandard
        self._frame = self._new_frame()
        self._is_between = True
        self._ready = memoryview(b"")

    def _new_frame(self) -> Any:
        return self._zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            piece = self._file.read(_PIECE)
            if not piece:
                if not self._is_between:
                    raise OSError("the packed data ends too early")
                return 0
            self._ready = memoryview(self._unpack(piece))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self, piece: bytes) -> bytes:
        unpacked = b""
        while piece:
            try:
                unpacked += self._frame.decompress(piece)
            except self._zstandard.ZstdError as error:
                raise OSError(f"the packed data is damaged ({error})") from None
            self._is_between = self._frame.eof
            piece = self._frame.unused_data if self._is_between else b""
            if self._is_between:
                self._frame = self._new_frame()
        return unpacked

    def close(self) -> None:
        self._file.close()
        super().close()
