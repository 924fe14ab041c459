"""What a failed call of the file system means to the tier. Every message begins with a word to count it by."""

import errno

from kvpager.errors import TierError, TierFull

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NOT_WRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}


def fault(error: OSError, doing: str) -> TierError:
    """TierFull where writing may work again later without anybody having to look at the disk."""
    name = errno.errorcode.get(error.errno or 0, "OSError")
    text = f"{name}: {doing}: {error.strerror or error}"
    return TierFull(text) if error.errno in NO_ROOM | _NOT_WRITABLE else TierError(text)


def word(error: BaseException) -> str:
    """What a failure is counted by."""
    return str(error).partition(":")[0][:40]


def describe_full(reason: str) -> str:
    """The state of a tier that takes nothing."""
    is_room = word(TierError(reason)) in ("ENOSPC", "EDQUOT", "limit")
    return f"full: {reason}" if is_room else f"not writable: {reason}"
