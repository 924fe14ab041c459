"""Token ids of one request in, its text out, piece by piece: whole characters only, and nothing of a stop string.

Knows how to decode a growing output in constant time a token, which characters may still change, and where a stop
string begins. Does not know requests, special stop tokens (the engine never pushes them) or any particular tokenizer:
anything with ``decode`` will do.

Two things hold text back. A token may end inside a UTF-8 character: a tokenizer then shows U+FFFD, and we wait for the
rest. And the text so far may end like the beginning of a stop string: we wait until it is one, or can't be one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvpager.errors import InvariantError

REPLACEMENT = "\ufffd"  # what tokenizers show for bytes that are no character (yet)
MAX_PENDING = 16  # tokens that may wait for the end of a character; more is bytes that will never be one
MAX_UNFINISHED = 3  # tokens that an unfinished UTF-8 character can have: one byte each, and the fourth finishes it


class Tokenizer(Protocol):
    """What a detokenizer needs of a tokenizer; those of transformers have it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of the tokens, with U+FFFD for bytes that are no UTF-8 character."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that became certain. ``finished_by``: the stop string found after it, None while there is none."""

    text: str
    finished_by: str | None = None


class Detokenizer:
    """The text of one request's output, pushed token by token.

    The texts of all deltas, joined, are what the tokenizer decodes from all tokens, up to the stop string that ends
    first (of several that end together, the longest), which is left out. It does not matter how the text is cut into
    tokens. A character that the last tokens began and did not finish is left out too, and with it any U+FFFD at the
    very end: the two look the same.

    Args:
        tokenizer: decodes the ids.
        stop: texts that end the output, none empty.
        context: the last tokens of the prompt, a handful. Tokenizers that drop a leading space (SentencePiece) then
            keep the one between prompt and output; none of the context's text is given out.
        skip_special_tokens: leave special tokens out of the text.

    Time per token: one or two calls of ``decode`` over at most 2 * MAX_PENDING tokens and the context; the technique
    is the prefix and read offsets of text-generation-inference.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        context: Sequence[int] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._unread = _Window(tokenizer, context, skip_special_tokens)
        self._stops = [_Matcher(text) for text in stop]
        self._held = ""  # certain text that may still be the beginning of a stop string
        self._is_closed = False

    def push(self, token: int, *, may_end: bool = True) -> TextDelta:
        """Take the next token of the output and give out what it made certain, perhaps nothing.

        Args:
            may_end: whether a stop string that ends with this token ends the text; else it is text like any other.

        Raises:
            InvariantError: a stop string was found or ``flush`` was called before; there is no more text.
        """
        if self._is_closed:
            raise InvariantError("push() after the end of the text: stop pushing once finished_by is set or flushed.")
        return self._search(self._unread.push(token), may_end)

    def flush(self) -> TextDelta:
        """End the text: give out what was held back because it looked like a stop string. Again: nothing."""
        text, self._held = self._held, ""
        self._is_closed = True
        return TextDelta(text)

    def _search(self, new: str, may_end: bool) -> TextDelta:
        if not self._stops:
            return TextDelta(new)
        text = self._held + new
        for end in range(len(self._held) + 1, len(text) + 1):
            found = [matcher.text for matcher in self._stops if matcher.push(text[end - 1])]
            if found and may_end:
                return self._finish(text[:end], max(found, key=len))
        certain = len(text) - max((matcher.matched for matcher in self._stops), default=0)
        self._held = text[certain:]
        return TextDelta(text[:certain])

    def _finish(self, text: str, stop: str) -> TextDelta:
        self._held = ""
        self._is_closed = True
        return TextDelta(text.removesuffix(stop), stop)


class _Window:
    """The last tokens, enough of them to decode the next one right.

        tokens:   [ told ............ | pending ....... ]
        text:     [ told ..................... | U+FFFD ]
                                               ^ released

    ``told``: the tokens given out last, kept because the text of a token can depend on the one before. ``pending``:
    tokens whose text ends in U+FFFD or that had no text. Invariant: ``released`` characters of the window's text were
    given out, and at most MAX_PENDING tokens are pending.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._tokens = [int(token) for token in context]
        self._num_told = len(self._tokens)
        self._released = len(self._decode(self._tokens))

    def push(self, token: int) -> str:
        """Take a token and return the new whole characters."""
        self._tokens.append(int(token))
        text = self._decode(self._tokens)
        certain = text.rstrip(REPLACEMENT)
        new = certain[self._released :]
        self._released += len(new)
        if new and certain == text:
            self._tell(len(self._tokens), waiting=0)
        elif len(self._tokens) - self._num_told > MAX_PENDING:
            new += self._give_up(text, certain)
        return new

    def _tell(self, end: int, waiting: int) -> None:
        """Call the pending tokens before ``end`` told and forget those told earlier; ``waiting`` characters remain."""
        self._tokens = self._tokens[self._num_told :]
        self._num_told = end - self._num_told
        self._released = len(self._decode(self._tokens)) - waiting

    def _give_up(self, text: str, certain: str) -> str:
        """Give out U+FFFD that can't become a character, so that garbage does not make the window grow.

        All but the last MAX_UNFINISHED tokens are beyond doubt. The cut may be inside a character, but then one that
        is whole and was given out; that is why what still waits is counted from the end.
        """
        if certain == text:  # nothing waits: the pending tokens have no text
            del self._tokens[self._num_told :]
            return ""
        end = len(self._tokens) - MAX_UNFINISHED
        released = max(self._released, len(self._decode(self._tokens[:end])))
        new = text[self._released : released]
        self._tell(end, waiting=len(text) - released)
        return new

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special_tokens) if tokens else ""


class _Matcher:
    """Searches one stop string in a text given character by character, in constant amortised time each.

    Knuth, Morris, Pratt, "Fast pattern matching in strings", 1977. ``matched`` is the length of the longest end of the
    text that is a beginning of the stop string: the part to hold back.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._border = _borders(text)

    def push(self, character: str) -> bool:
        """Take the next character; whether the stop string ends with it. ``matched`` is then what may begin it anew."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._border[self.matched - 1]
        self.matched += self.text[self.matched] == character
        is_found = self.matched == len(self.text)
        if is_found:
            self.matched = self._border[-1]
        return is_found


def _borders(text: str) -> list[int]:
    """For each beginning of ``text``: the length of its longest proper beginning that is also its end."""
    borders = [0] * len(text)
    matched = 0
    for position in range(1, len(text)):
        while matched and text[matched] != text[position]:
            matched = borders[matched - 1]
        matched += text[matched] == text[position]
        borders[position] = matched
    return borders
