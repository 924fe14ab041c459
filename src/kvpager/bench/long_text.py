"""Long text to measure perplexity on: the language reference that comes with Python itself (PSF License Version 2).

Nothing is copied into this repository: the text is put together from the standard library when it is needed.
"""

from collections.abc import Iterator

from kvpager.errors import ConfigError

CHARACTERS = 6  # more than a token of this text has


def long_text(num_characters: int) -> str:
    """The first so many characters, from the longest chapters on. Raises ConfigError where Python came without them."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ConfigError("this Python came without pydoc_data, the text: install its whole library") from None
    text = ""
    for chapter in _longest_first(topics):
        text += chapter
        if len(text) >= num_characters:
            return text[:num_characters]
    raise ConfigError(f"the language reference has {len(text)} characters, fewer than {num_characters}")


def _longest_first(topics: dict[str, str]) -> Iterator[str]:
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        yield topics[name]
