"""Content keys: what a published page holds, as 32 bytes that mean the same in every process, tier and node.

    root key  = SHA-256( "kvpager.scope" | format | model fingerprint | KV layout | salt | adapter | adapter version )
    page key  = SHA-256( "kvpager.page"  | parent key | token ids, int32 little-endian | media of the page )
    block key = SHA-256( "kvpager.block" | page key | layer group ), for group 0 the page key itself

Every field is preceded by its length (8 bytes, little-endian), so no two lists of fields give the same bytes. The key
of page i names its whole history: tokens, media and scope from position 0 on. No Python hash(), no pickle, no
shortened digest.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from kvpager.errors import ConfigError
from kvpager.types import ContentKey

FORMAT_VERSION = 1
_MAX_NAME = 1024  # characters of a salt or adapter name


@dataclass(frozen=True, slots=True)
class Media:
    """Something that is not a token (an image, a sound) and shapes the KV from token ``position`` on."""

    position: int
    digest: bytes  # 32 bytes of SHA-256 over the media content


@dataclass(frozen=True, slots=True)
class Scope:
    """What must be equal, beside the tokens, for two sequences to share KV.

    ``salt`` keeps tenants apart; the empty salt is the same as none. ``adapter`` and ``adapter_version`` name the
    weights on top of the model: give a new version whenever the adapter's weights change. ``media`` is sorted by
    position. ``tenant``: who pays for the pages, see docs/retention.md; None: whom the salt names. It need not be
    equal. Raises ConfigError for wrong types, names over 1,024 characters, or digests that are not 32 bytes.
    """

    salt: str = ""
    adapter: str = ""
    adapter_version: str = ""
    media: tuple[Media, ...] = ()
    tenant: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("salt", "adapter", "adapter_version", "tenant"):
            value = getattr(self, name)
            if (name != "tenant" or value is not None) and (not isinstance(value, str) or len(value) > _MAX_NAME):
                raise ConfigError(f"scope {name} must be a string of at most {_MAX_NAME} characters")
        if self.adapter_version and not self.adapter:
            raise ConfigError("scope adapter_version without an adapter: name the adapter too")
        for item in self.media:
            if not isinstance(item.digest, bytes) or len(item.digest) != 32:
                raise ConfigError("a media digest must be the 32 bytes of a SHA-256")
            if item.position < 0:
                raise ConfigError(f"media position {item.position} is before the first token")
        if [item.position for item in self.media] != sorted(item.position for item in self.media):
            raise ConfigError("scope media must be sorted by position")

    def up_to(self, stop: int) -> "Scope":
        """What must be equal to share the KV of positions below ``stop``: media that begin later do not count."""
        if not self.media or self.media[-1].position < stop:
            return self
        return replace(self, media=tuple(m for m in self.media if m.position < stop))

    def media_bytes(self, start: int, stop: int) -> bytes:
        """The media that begin at token positions ``start .. stop-1``, as bytes of an index label and a page key."""
        inside = [m for m in self.media if start <= m.position < stop]
        return b"".join((m.position - start).to_bytes(8, "little") + m.digest for m in inside)


def digest_fields(fields: Iterable[bytes]) -> ContentKey:
    """SHA-256 over length-prefixed fields."""
    state = hashlib.sha256()
    for each in fields:
        state.update(len(each).to_bytes(8, "little"))
        state.update(each)
    return ContentKey(state.digest())


def root_key(fingerprint: bytes, layout: str, scope: Scope) -> ContentKey:
    """The key that all pages of one model, layout and scope descend from. ``layout`` is KVLayout.describe()."""
    return digest_fields(
        [
            b"kvpager.scope",
            FORMAT_VERSION.to_bytes(4, "little"),
            fingerprint,
            layout.encode(),
            scope.salt.encode("utf-8", "surrogatepass"),
            scope.adapter.encode("utf-8", "surrogatepass"),
            scope.adapter_version.encode("utf-8", "surrogatepass"),
        ]
    )


def block_key(page: ContentKey, group: int) -> ContentKey:
    """What the block of a page in one layer group is called in the tiers; in the first group, as the page is."""
    return page if group == 0 else digest_fields([b"kvpager.block", page, group.to_bytes(4, "little")])


def tier_identity(fingerprint: bytes, layout: str) -> bytes:
    """What the header of every stored page says beside its key: 32 bytes of model and layout."""
    return digest_fields([b"kvpager.tier", FORMAT_VERSION.to_bytes(4, "little"), fingerprint, layout.encode()])


def page_key(parent: ContentKey, tokens: bytes, media: bytes) -> ContentKey:
    """The key of the page that follows ``parent``; ``tokens`` are page_size int32 little-endian ids."""
    return digest_fields([b"kvpager.page", parent, tokens, media])
