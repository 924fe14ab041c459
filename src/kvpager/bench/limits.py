"""What the memory of this machine allows, measured by native code: the yardstick of the kernels."""

from types import ModuleType

from kvpager import native
from kvpager.bench.interleaved import Call
from kvpager.errors import ConfigError


def native_module() -> ModuleType:
    """The native kernels. Raises ConfigError where they are missing."""
    module = native.module()
    if module is None:
        raise ConfigError(f"there are no native kernels to measure: {native.why_not()}")
    return module


def read_limit(address: int, num_bytes: int, parts: int = 1) -> Call:
    """A call that reads ``num_bytes`` at ``address``; with ``parts``, each call reads the next range of that length."""
    module, turn = native_module(), 0
    threads = module.num_threads()

    def read() -> None:
        nonlocal turn
        turn = (turn + 1) % parts
        module.read_bytes(address + turn * num_bytes, num_bytes, threads)

    return read


def copy_limits(target: int, source: int, num_bytes: int, parts: int = 1) -> list[Call]:
    """Calls that copy ``num_bytes``: by the C library's memcpy, and by stores around the caches. The faster one is the
    limit. With ``parts``, each call writes the next range of that length. The target is aligned to 64 bytes."""
    module = native_module()
    threads = module.num_threads()

    def copier(copy: Call) -> Call:
        turn = 0

        def copy_next() -> None:
            nonlocal turn
            turn = (turn + 1) % parts
            copy(target + turn * num_bytes, source, num_bytes, threads)

        return copy_next

    return [copier(module.copy_bytes), copier(module.stream_bytes)]
