"""A URL as messages may show it."""

from urllib.parse import urlsplit


def shown_url(url: str) -> str:
    """``url`` without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
