"""A value as an error message shows it: cut short, and without the user and password of a URL."""

import re

_LOGIN = re.compile(r"(?<=://)\S*@")  # up to the last @: a password may hold any sign


def shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
        return "a very long number"
    text = _LOGIN.sub("***@", text)
    return text if len(text) <= 80 else f"{text[:77]}..."
