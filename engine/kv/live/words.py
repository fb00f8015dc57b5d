"""The words in a block, as the server's own tokenizer has them; asked for once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from engine.config import Endpoint
from engine.errors import RequestRejected
from engine.fetch import fetch, parse_json
from engine.kv.live.block_tree import Key

MOST_WORDS = 4096
TIMEOUT_S = 5.0


class WordBook:
    """Words by block, for any thread; the oldest are forgotten beyond ``most``."""

    def __init__(self, most: int = MOST_WORDS) -> None:
        self._most, self._lock = most, threading.Lock()
        self._words: OrderedDict[Key, str] = OrderedDict()

    def get(self, key: Key) -> str | None:
        with self._lock:
            return self._words.get(key)

    def put(self, key: Key, words: str) -> None:
        with self._lock:
            self._words[key] = words
            while len(self._words) > self._most:
                self._words.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._words.clear()

    def ask(self, endpoint: Endpoint, blocks: Mapping[Key, Sequence[int]]) -> None:
        """Learn the words of these blocks' token ids. Raises LabError where the server can't tell them."""
        for key, tokens in blocks.items():
            self.put(key, detokenize(endpoint, tokens))


def detokenize(endpoint: Endpoint, tokens: Sequence[int]) -> str:
    """The text of token ids; a character cut at either end is left out. Raises ServerNotReady or RequestRejected."""
    url = f"{endpoint.root_url}/detokenize"
    body = {"model": endpoint.model, "tokens": list(tokens)}
    reply = fetch("POST", url, headers=endpoint.headers, body=body, timeout_s=TIMEOUT_S)
    text = parse_json(reply, url).get("prompt")
    if not isinstance(text, str):
        raise RequestRejected("The server's /detokenize sent no text.", status=reply.status)
    return text.strip("\ufffd")
