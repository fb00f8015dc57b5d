"""What one streamed token costs the client, ours against the OpenAI SDK, and whether both measure the same.

    python -m benchmarks.sdk_cost                       a fake server in another process
    python -m benchmarks.sdk_cost --base-url URL        a real one as well (--api-key, --model)

Both clients take turns in one run: same server, same requests, same number of users. The cost is this process's CPU
time (user and system) per token, JSON included. Agreement is the ratio of the medians of TTFT and TPOT, one request
at a time. One JSON document on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median

from engine.answer import AnswerRecorder
from engine.chat import ChatOptions, request_body, sdk_client, stream_with_sdk
from engine.client import CompletionRequest, run_concurrently
from engine.config import Endpoint
from engine.endpoint_api import list_models
from engine.errors import LabError
from engine.metrics import RequestTrace

PROMPT = "Write a long story about a lighthouse."
TARGET_MS = 0.12
TARGET_AGREEMENT = 0.05
Client = Callable[[Endpoint, Sequence[CompletionRequest]], list[RequestTrace]]


@dataclass(frozen=True)
class Agreement:
    """Medians in ms of both clients, and how far the SDK's are from ours (0.05: five percent)."""

    ttft_client_ms: float
    ttft_sdk_ms: float
    tpot_client_ms: float
    tpot_sdk_ms: float
    ttft_difference: float
    tpot_difference: float

    @property
    def ok(self) -> bool:
        return max(abs(self.ttft_difference), abs(self.tpot_difference)) <= TARGET_AGREEMENT


def light(endpoint: Endpoint, requests: Sequence[CompletionRequest]) -> list[RequestTrace]:
    return run_concurrently(endpoint, requests)


def sdk(endpoint: Endpoint, requests: Sequence[CompletionRequest]) -> list[RequestTrace]:
    return asyncio.run(_sdk(endpoint, requests))


async def _sdk(endpoint: Endpoint, requests: Sequence[CompletionRequest]) -> list[RequestTrace]:
    """One SDK client for all, as a program would; with one request its sending time is exact, as in Chat."""
    recorders = [AnswerRecorder(request.expected_tokens, None) for request in requests]
    bodies = [_sdk_body(endpoint, request) for request in requests]
    on_send = recorders[0].mark_sent if len(recorders) == 1 else None
    async with sdk_client(endpoint, on_send) as client:
        await asyncio.gather(*(stream_with_sdk(client, r, b) for r, b in zip(recorders, bodies, strict=True)))
    return [recorder.trace() for recorder in recorders]


def _sdk_body(endpoint: Endpoint, request: CompletionRequest) -> dict[str, object]:
    options = ChatOptions(temperature=request.temperature, max_tokens=request.max_tokens)
    body = request_body(endpoint, request.messages or [], options, live_usage=False)
    return body | {"extra_body": {"ignore_eos": request.ignore_eos}}


def chat_requests(count: int, max_tokens: int, name: str) -> list[CompletionRequest]:
    """A nonce starts every prompt, so that none is found in the prefix cache."""
    return [
        CompletionRequest(
            messages=[{"role": "user", "content": f"{name}-{i}-{time.time_ns()}. {PROMPT}"}],
            max_tokens=max_tokens,
            ignore_eos=True,
        )
        for i in range(count)
    ]


def cpu_ms_per_token(client: Client, endpoint: Endpoint, users: int, tokens: int) -> float:
    requests = chat_requests(users, tokens, client.__name__)
    gc.collect()
    before_s = time.process_time()
    traces = client(endpoint, requests)
    spent_s = time.process_time() - before_s
    return spent_s * 1000 / sum(_whole(trace).output_tokens or 0 for trace in traces)


def agreement(endpoint: Endpoint, *, repeats: int = 10, tokens: int = 64) -> Agreement:
    """TTFT and TPOT of both clients on one server, taking turns so that drift hits both alike."""
    traces: dict[Client, list[RequestTrace]] = {light: [], sdk: []}
    for client in traces:
        client(endpoint, chat_requests(1, tokens, "warm-up"))
    for index in range(repeats):
        order = [light, sdk] if index % 2 else [sdk, light]
        for client in order:
            traces[client] += [_whole(trace) for trace in client(endpoint, chat_requests(1, tokens, "agree"))]
    ttft = {client: median(trace.ttft_ms or 0.0 for trace in traces[client]) for client in traces}
    tpot = {client: median(trace.tpot_ms or 0.0 for trace in traces[client]) for client in traces}
    return Agreement(
        ttft[light], ttft[sdk], tpot[light], tpot[sdk], ttft[sdk] / ttft[light] - 1, tpot[sdk] / tpot[light] - 1
    )


def costs(endpoint: Endpoint, *, users: int, tokens: int, repeats: int) -> dict[str, object]:
    """CPU per token of both clients and their ratio (medians)."""
    for client in (light, sdk):
        cpu_ms_per_token(client, endpoint, users, tokens)
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(cpu_ms_per_token(light, endpoint, users, tokens))
        theirs.append(cpu_ms_per_token(sdk, endpoint, users, tokens))
    return {
        "users": users,
        "tokens_per_user": tokens,
        "client_cpu_ms_per_token": median(ours),
        "client_cpu_ms_per_token_spread": [min(ours), max(ours)],
        "sdk_cpu_ms_per_token": median(theirs),
        "sdk_cpu_ms_per_token_spread": [min(theirs), max(theirs)],
        "sdk_over_client": median(theirs) / median(ours),
        "target_ms": TARGET_MS,
        "ok": median(ours) < TARGET_MS,
    }


def _whole(trace: RequestTrace) -> RequestTrace:
    if failure := trace.failure():
        raise failure
    return trace


@contextmanager
def fake_server(tokens: int, gap_ms: float, ttft_ms: float = 100.0) -> Iterator[Endpoint]:
    """In a process of its own, so that its CPU time isn't counted; ends with its standard input."""
    command = [sys.executable, "-m", "tests.fake_openai"]
    command += ["--tokens", str(tokens), "--gap-ms", str(gap_ms), "--ttft-ms", str(ttft_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", "fake-model")
        finally:
            process.stdin.close()
            process.wait(10)


def report(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, object]:
    agreed = agreement(endpoint, repeats=args.agreement_repeats, tokens=min(args.tokens, 64))
    return {
        "cost": costs(endpoint, users=args.users, tokens=args.tokens, repeats=args.repeats),
        "agreement": asdict(agreed) | {"ok": agreed.ok},
    }


def fake_report(args: argparse.Namespace) -> dict[str, object]:
    with fake_server(args.tokens, args.gap_ms) as endpoint:
        cost = costs(endpoint, users=args.users, tokens=args.tokens, repeats=args.repeats)
    with fake_server(32, args.gap_ms) as endpoint:
        agreed = agreement(endpoint, repeats=args.agreement_repeats, tokens=32)
    return {"cost": cost, "agreement": asdict(agreed) | {"ok": agreed.ok}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a real server, e.g. http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key")
    parser.add_argument("--model", help="default: the first one it serves")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--gap-ms", type=float, default=20.0, help="between tokens of the fake server")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--agreement-repeats", type=int, default=10)
    args = parser.parse_args()
    try:
        result: dict[str, object] = {"fake": fake_report(args)}
        if args.base_url:
            model = args.model or list_models(args.base_url, args.api_key)[0].id
            result["server"] = report(Endpoint(args.base_url, model, args.api_key), args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
