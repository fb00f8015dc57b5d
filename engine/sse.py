"""Server-sent events from bytes: small, because it runs once per streamed token.

Lines may end in LF or CRLF and may be split anywhere, even inside a UTF-8 character:
only whole lines are looked at, and text is decoded by the JSON parser.
Source: the event stream format of the HTML standard, section 9.2.6.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_EVENT_BYTES = 1 << 20


class EventTooLarge(Exception):
    """One event is longer than ``MAX_EVENT_BYTES``: this isn't a token stream."""


class EventParser:
    """Feed it what was read; get the data of the events that are complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, read: bytes) -> list[bytes]:
        """Events completed by these bytes; raises EventTooLarge."""
        if self._is_one_event(read):  # nearly every read
            return [read[6:-2].removesuffix(b"\r")]
        lines = (self._rest + read).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        events: list[bytes] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        return events

    def _is_one_event(self, read: bytes) -> bool:
        if self._rest or self._data or not read.startswith(b"data: "):
            return False
        return read.find(b"\n") == len(read) - 2 and read.endswith(b"\n\n") and len(read) <= MAX_EVENT_BYTES

    def close(self) -> list[bytes]:
        """The event that lacked its blank line when the stream ended, if any."""
        events: list[bytes] = []
        self._take(self._rest.removesuffix(b"\r"), events)
        self._take(b"", events)
        self._rest = b""
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            self._data_bytes += len(line)
            if self._data_bytes > MAX_EVENT_BYTES:
                raise EventTooLarge
        elif not line and self._data:
            events.append(b"\n".join(self._data))
            self._data.clear()
            self._data_bytes = 0


def joined(pieces: Iterable[str]) -> str:
    """One text of streamed pieces. A character that a server cut in two (surrogates) is whole again; half of one,
    which nothing could show or save, becomes the replacement character."""
    text = "".join(pieces)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
