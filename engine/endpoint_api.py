"""What an OpenAI-compatible server answers at once: its models, token ids, and one token as a proof of life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.answer import whole_number
from engine.config import Endpoint
from engine.errors import ConfigError, RequestRejected
from engine.fetch import cause_of, fetch, message_of, parse_json, remedy_for
from engine.sse import joined


@dataclass(frozen=True)
class ServedModel:
    """A line of ``/v1/models``; the length is tokens, None where the server doesn't say."""

    id: str
    max_model_len: int | None


@dataclass(frozen=True)
class TokenCount:
    """Token ids of a prompt, and the context they must fit into (None: not said)."""

    ids: list[int]
    max_model_len: int | None


def tokenize(
    endpoint: Endpoint,
    messages: list[dict[str, Any]] | None = None,
    prompt: str | None = None,
    *,
    timeout_s: float = 10.0,
) -> list[int]:
    """Token ids of a prompt, or of messages in the model's chat template with the reply's opening.

    Raises RequestRejected where the server has no ``/tokenize`` (status 404) or refuses.
    """
    return count_tokens(endpoint, messages, prompt, timeout_s=timeout_s).ids


def count_tokens(
    endpoint: Endpoint,
    messages: list[dict[str, Any]] | None = None,
    prompt: str | None = None,
    *,
    timeout_s: float = 10.0,
) -> TokenCount:
    """As ``tokenize``, with the length of the context that the server tells along with it."""
    if (messages is None) == (prompt is None):
        raise ConfigError("Give messages or a prompt to tokenize, not both.")
    content: dict[str, Any] = {"prompt": prompt}
    if messages is not None:
        content = {"messages": messages, "add_generation_prompt": True}
    url = f"{endpoint.root_url}/tokenize"
    body = {"model": endpoint.model, **content}
    value = parse_json(fetch("POST", url, headers=endpoint.headers, body=body, timeout_s=timeout_s), url)
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise RequestRejected("The server's /tokenize sent no token ids.", status=200)
    return TokenCount(tokens, whole_number(value.get("max_model_len")))


def list_models(base_url: str, api_key: str | None = None, *, timeout_s: float = 10.0) -> list[ServedModel]:
    """What a server serves. Raises ServerNotReady, RequestRejected, or ConfigError for the address."""
    endpoint = Endpoint(base_url, "", api_key)
    url = f"{base_url}/models"
    models = parse_json(fetch("GET", url, headers=endpoint.headers, timeout_s=timeout_s), url).get("data")
    if not isinstance(models, list):
        raise RequestRejected("The server's list of models isn't one.", "Check the base URL.", 200)
    return [
        ServedModel(joined([model["id"]]), whole_number(model.get("max_model_len")) or None)
        for model in models
        if isinstance(model, dict) and isinstance(model.get("id"), str) and joined([model["id"]])
    ]


def probe_one_token(endpoint: Endpoint, timeout_s: float = 30.0) -> None:
    """Have one token generated: the only proof that the engine lives, ``/health`` says 200 while it hangs.

    Raises ServerNotReady when nothing answers in time, RequestRejected when the answer is an error.
    """
    body = {"model": endpoint.model, "max_tokens": 1, "temperature": 0.0}
    url = f"{endpoint.base_url}/completions"
    reply = fetch("POST", url, headers=endpoint.headers, body=body | {"prompt": "Hello"}, timeout_s=timeout_s)
    if reply.status in (404, 405):  # some servers only chat
        url = f"{endpoint.base_url}/chat/completions"
        messages = [{"role": "user", "content": "Hello"}]
        reply = fetch("POST", url, headers=endpoint.headers, body=body | {"messages": messages}, timeout_s=timeout_s)
    value = parse_json(reply, url)
    choices = value.get("choices")
    if value.get("error") or not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        message = message_of(value["error"]) if value.get("error") else "it sent no choices"
        raise RequestRejected(cause_of(message, None), remedy_for(message, None), reply.status)
