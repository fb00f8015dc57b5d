"""One short HTTP exchange, bounded in time and size, and the words for what can go wrong.

Redirects are never followed: the API key would travel with them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from engine.errors import ConfigError, RequestRejected, ServerNotReady

MAX_BODY_BYTES = 8 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_CAUSE_CHARS = 600
CONNECT_TIMEOUT_S = 10.0
CONNECTION_BROKE = "The connection broke before the answer was complete."
STILL_RUNNING = "Is the server still running?"
NO_TEMPLATE = "default chat template is no longer allowed"
NO_TEMPLATE_CAUSE = "This model has no chat template: it is a base model that continues text."


@dataclass(frozen=True)
class Reply:
    """``complete`` is False where the body was longer than ``MAX_BODY_BYTES``."""

    status: int
    body: bytes
    location: str = ""
    complete: bool = True


def fetch(
    method: str, url: str, *, headers: dict[str, str], body: dict[str, Any] | None = None, timeout_s: float = 10.0
) -> Reply:
    """One exchange on an event loop of its own, so call it from a thread without one.

    Any status is a Reply; ServerNotReady means no reply, ConfigError no usable address.
    """
    check_url(url)
    try:
        return asyncio.run(_fetch(method, url, headers, body, timeout_s))
    except TimeoutError as error:
        raise ServerNotReady(f"No answer from {_place(url)} within {timeout_s:g} s.", "Is the server busy?") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:  # ValueError: no usable address or key
        raise unreachable(url, error) from error


def check_url(url: str) -> None:
    """Raises ConfigError unless this is an absolute http(s) address with a host."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{url!r} is not a server address.", "Give one like http://127.0.0.1:8000/v1.")


def base_url_of(text: str) -> str:
    """What a person types → a base URL: ``host:port`` → ``http://host:port/v1``; a path of its own stays.

    Raises ConfigError.
    """
    url = text.strip()
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    if any(mark.isspace() or mark in "@?#" for mark in url):
        raise ConfigError(f"{text!r} is not a base URL.", "Write it like http://127.0.0.1:8000/v1.")
    check_url(url)
    return url if urlsplit(url).path else f"{url}/v1"


def api_key_of(text: str | None) -> str | None:
    """What a person types → a key, None for nothing. Raises ConfigError for what can't be sent as one."""
    key = (text or "").strip() or None
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError("The API key holds characters that no key has.", "Copy it again.")
    return key


def parse_json(reply: Reply, url: str) -> dict[str, Any]:
    """The JSON object of a good reply; RequestRejected for everything else."""
    if reply.status != 200:
        raise rejection(reply.status, reply.body, reply.location)
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRejected(
            f"{_place(url)} didn't answer like an OpenAI-compatible server.",
            "Check the base URL: it usually ends in /v1.",
            reply.status,
        )
    return value


def rejection(status: int, body: bytes, location: str = "") -> RequestRejected:
    """What the server said, with a remedy where the status tells one."""
    if 300 <= status < 400:
        target = f" to {location[:200]}" if location else ""
        return RequestRejected(
            f"The server redirects{target} (HTTP {status}).", "Use the final address as the base URL.", status
        )
    message = error_message(body)
    return RequestRejected(cause_of(message, status), remedy_for(message, status), status)


def cause_of(message: str, status: int | None) -> str:
    if NO_TEMPLATE in message:
        return NO_TEMPLATE_CAUSE
    where = f"The server answered HTTP {status}" if status else "The server reported an error"
    return f"{where}: {message}" if message else f"{where}."


def remedy_for(message: str, status: int | None) -> str:
    """The next step for an error message of an OpenAI-compatible server; empty when none is known."""
    if NO_TEMPLATE in message:
        return "Choose an instruct or chat model, or send plain prompts through /v1/completions."
    if "maximum context length" in message or "longer than the maximum model length" in message:
        return "Shorten the prompt, lower max_tokens, or raise max_model_len."
    remedies = {
        401: "Check the API key.",
        403: "Check the API key.",
        404: "Check the base URL and the model name.",
        429: "The server has too much to do: try again later or send fewer requests at once.",
        500: "The server's log says more.",
        503: "The server is loading or overloaded: try again.",
    }
    return remedies.get(status or 0, "")


def error_message(body: bytes) -> str:
    """The message in an error body: OpenAI's, older vLLM's, FastAPI's, or the text itself."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _short(body.decode(errors="replace"))
    return message_of(value)


def message_of(value: Any) -> str:
    """The message in decoded JSON, whatever the server wrapped it in."""
    if isinstance(value, dict):
        for name in ("error", "message", "detail", "msg"):
            if value.get(name):
                return message_of(value[name])
    return _short(value if isinstance(value, str) else json.dumps(value))


def unreachable(url: str, error: BaseException) -> ServerNotReady:
    detail = _short(str(error) or type(error).__name__)
    return ServerNotReady(f"No server answers at {_place(url)} ({detail}).", "Start it, or check the address.")


async def _fetch(
    method: str, url: str, headers: dict[str, str], body: dict[str, Any] | None, timeout_s: float
) -> Reply:
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_TIMEOUT_S, timeout_s))
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, url, headers=headers, json=body, allow_redirects=False) as response,
    ):
        content, complete = await read_bounded(response.content, MAX_BODY_BYTES)
        return Reply(response.status, content, response.headers.get("Location", ""), complete)


async def read_bounded(content: aiohttp.StreamReader, limit: int) -> tuple[bytes, bool]:
    """At most ``limit`` bytes, and whether that was all of it."""
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        parts.append(part)
        size += len(part)
        if size > limit:
            return b"".join(parts)[:limit], False
    return b"".join(parts), True


def _place(url: str) -> str:
    """Host and port only: an address may hold a password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port}" if parts.port else str(host)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_CAUSE_CHARS else text[: MAX_CAUSE_CHARS - 1] + "…"
