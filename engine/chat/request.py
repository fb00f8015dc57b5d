"""One chat request: whether it fits, and how it goes through the OpenAI SDK."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from engine.answer import AnswerRecorder
from engine.chat.turn import ChatOptions
from engine.client import IDLE_TIMEOUT_S
from engine.config import Endpoint
from engine.endpoint_api import count_tokens
from engine.errors import ConfigError, PromptTooLong, RequestRejected
from engine.fetch import (
    CONNECT_TIMEOUT_S,
    CONNECTION_BROKE,
    NO_TEMPLATE_CAUSE,
    STILL_RUNNING,
    cause_of,
    message_of,
    rejection,
    remedy_for,
    unreachable,
)

if TYPE_CHECKING:
    import openai

OnEvent = Callable[[dict[str, Any], float], object]


def check_fits(endpoint: Endpoint, messages: list[dict[str, Any]], max_tokens: int) -> tuple[bool, int | None]:
    """Whether the server is a vLLM, and the prompt's length in tokens (None: it can't count).

    Raises PromptTooLong or ConfigError when prompt and answer can't fit into the context,
    RequestRejected for a model without a chat template, ServerNotReady when nothing answers.
    """
    limit, prompt_tokens, vllm = endpoint.max_model_len, None, False
    try:
        counted = count_tokens(endpoint, messages)
    except RequestRejected as error:
        if error.cause == NO_TEMPLATE_CAUSE:
            raise
    else:
        vllm = counted.max_model_len is not None
        prompt_tokens = len(counted.ids) or None  # llama.cpp answers an empty list to this request
        limit = limit or counted.max_model_len
    if limit is not None:
        _check_room(prompt_tokens or 1, max_tokens, limit)
    return vllm, prompt_tokens


def _check_room(prompt_tokens: int, max_tokens: int, limit: int) -> None:
    room = limit - prompt_tokens
    if prompt_tokens + max_tokens <= limit:
        return
    if max_tokens >= limit:
        raise ConfigError(
            f"max_tokens ({max_tokens}) doesn't fit into the context of {limit} tokens.",
            f"Use at most {room}." if room > 0 else "Lower it, and shorten the message or begin a new chat.",
        )
    lower = f", or lower max_tokens to {room}" if room > 0 else ""
    raise PromptTooLong(
        f"The conversation has {prompt_tokens} tokens; with max_tokens {max_tokens} that is more than "
        f"max_model_len ({limit}).",
        f"Shorten the message, begin a new chat{lower}.",
    )


def request_body(
    endpoint: Endpoint, messages: list[dict[str, Any]], options: ChatOptions, *, live_usage: bool
) -> dict[str, Any]:
    """Arguments for the SDK. ``live_usage`` (vLLM only) asks for the token count with every chunk."""
    usage = {"include_usage": True} | ({"continuous_usage_stats": True} if live_usage else {})
    return {
        "model": endpoint.model,
        "messages": messages,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": options.max_tokens,
        "stream": True,
        "stream_options": usage,
    }


def sdk_client(endpoint: Endpoint, on_send: Callable[[], None] | None = None) -> openai.AsyncOpenAI:
    """An OpenAI client that retries nothing, follows no redirect and reads no proxy settings.

    ``on_send`` is called when a request goes to the network: what the SDK does before isn't waiting for a server.
    """
    import openai  # here, because it takes a second and most sessions never chat

    async def hook(_: object) -> None:
        if on_send is not None:
            on_send()

    return openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key or "none",
        max_retries=0,
        timeout=openai.Timeout(IDLE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        http_client=openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            trust_env=False,
            verify=_ssl_context(),
            limits=openai.DEFAULT_CONNECTION_LIMITS,
            event_hooks={"request": [hook]},
        ),
    )


@cache
def _ssl_context() -> ssl.SSLContext:
    """Made once: reading the certificates costs tens of milliseconds, more than a short answer."""
    import httpx2

    return httpx2.create_ssl_context()


async def stream_with_sdk(
    client: openai.AsyncOpenAI, recorder: AnswerRecorder, body: dict[str, Any], take: OnEvent | None = None
) -> None:
    """One chat completion through the OpenAI SDK; failures end up in the recorder.

    ``take(event, perf_counter_seconds)`` gets every chunk as a dict, ``recorder.take_event`` by default.
    """
    import httpx2
    import openai

    take = take or recorder.take_event
    recorder.sent_s = time.perf_counter()
    try:
        async with await client.chat.completions.create(**body) as chunks:
            async for chunk in chunks:
                now_s = time.perf_counter()
                take(chunk.model_dump(warnings=False), now_s)
    except openai.APIStatusError as error:
        recorder.refuse(rejection(error.status_code, error.response.content))
    except openai.APITimeoutError:
        recorder.fail("The server didn't answer in time.", "It may hang: restart it.")
    except openai.APIConnectionError as error:
        if isinstance(error.__cause__, httpx2.ConnectError):
            lost = unreachable(str(client.base_url), error.__cause__)
            recorder.refuse(RequestRejected(lost.cause, lost.remedy))
        else:
            recorder.fail(CONNECTION_BROKE, STILL_RUNNING)
    except openai.APIError as error:
        message = message_of(error.body) if error.body else error.message
        recorder.fail(cause_of(message, None), remedy_for(message, None))
    except json.JSONDecodeError:
        recorder.fail("The server sent an event that isn't JSON.")
    except httpx2.HTTPError:
        recorder.fail(CONNECTION_BROKE, STILL_RUNNING)
    finally:
        recorder.ended_s = time.perf_counter()
