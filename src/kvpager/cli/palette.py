"""The colours that tell requests apart in a terminal, and how a text from elsewhere is made safe to print."""

COLOURS = (
    *("#e6794b", "#4ba3e6", "#8bc34a", "#d16ba5", "#e0b93e", "#5cc8b8"),
    *("#a98be0", "#e05d5d", "#6f9f7f", "#c99a6b", "#7fb2d9", "#b5c94e"),
)


def colour(number: int) -> str:
    """Of the request with this number."""
    return COLOURS[number % len(COLOURS)]


def printable(text: object, width: int = 200) -> str:
    """One line of at most ``width`` characters, none of which a terminal would obey."""
    shown = "".join(each if each.isprintable() else "?" for each in str(text))
    return shown if len(shown) <= width else f"{shown[: width - 3]}..."
