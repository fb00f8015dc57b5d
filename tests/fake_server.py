"""A fake vLLM server as a process: prints a real start's log lines, then answers like ``FakeOpenAI``.

``python -m tests.fake_server --port 8000 --model owner/name``; the key is in ``VLLM_API_KEY``, as with vLLM.
``--at PHASE --do ACTION`` makes something happen in a phase of the start: ``hang`` (for ever), ``die``
(exit code 1, as an engine does), or ``wait`` (until the file ``--gate`` exists). In the phase ``ready`` it
listens already and the action comes with the first request for text; ``refuse`` answers that with an error.
``--stubborn`` ignores SIGTERM. With ``--kv-events-config`` it tells of blocks as vLLM does: every request shares the
blocks 1 and 2, and stores one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from aiohttp import web

from tests.fake_openai import FakeOpenAI
from tests.kv_publisher import Publisher, stored

START_LOG = Path(__file__).parent / "fixtures" / "starts" / "cpu_eager.log"
LISTENING = "Application startup complete"
MARKS = {"weights": "Starting to load model", "kv_cache": "Loading weights took", "warm_up": "KV cache size:"}
FAILURE = (
    "EngineCore failed to start.",
    "Traceback (most recent call last):",
    '  File "vllm/v1/engine/core.py", line 1, in run_engine_core',
    "    raise RuntimeError",
    "RuntimeError: the fake engine fails in {phase}",
)
POLL_S = 0.02


class FakeServer(FakeOpenAI):
    """Wants the key, and does what it was told when the first text is asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(port=arguments.port)
        self._arguments = arguments
        self._publisher = Publisher(arguments.kv_events_config) if arguments.kv_events_config else None
        self._asked = 0

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return web.json_response({"error": {"message": "Unauthorized", "code": 401}}, status=401)
        if self._arguments.at == "ready":
            refusal = await self._act()
            if refusal is not None:
                return refusal
        if self._publisher is not None:
            self._tell((await request.json()).get("session_id"))
        return await super()._complete(request)

    def _tell(self, session: str | None) -> None:
        assert self._publisher is not None
        self._asked += 1
        self._publisher.send(
            stored([1, 2], session_id=session), stored([10 + self._asked], parent=2, session_id=session)
        )

    async def _act(self) -> web.Response | None:
        action = self._arguments.do
        if action == "die":
            fail("ready")
        if action == "refuse":
            return web.json_response({"error": {"message": "the fake refuses", "code": 500}}, status=500)
        while action == "hang" or not Path(self._arguments.gate).exists():
            await asyncio.sleep(POLL_S)
        return None


def fail(phase: str) -> None:
    for line in FAILURE:
        print(f"(EngineCore pid=1) ERROR 12-01 03:02:04 [core.py:1] {line.format(phase=phase)}", flush=True)
    os._exit(1)


def act(arguments: argparse.Namespace) -> None:
    if arguments.do == "die":
        fail(arguments.at)
    while arguments.do == "hang" or not Path(arguments.gate).exists():
        time.sleep(POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--at", choices=("import", *MARKS, "ready"))
    parser.add_argument("--do", choices=("hang", "die", "wait", "refuse"))
    parser.add_argument("--gate", default="")
    parser.add_argument("--stubborn", action="store_true")
    parser.add_argument("--kv-events-config", default="")
    arguments, _ = parser.parse_known_args()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if arguments.stubborn else lambda *_: sys.exit(0))
    if arguments.at == "import":
        act(arguments)
    *before, last = START_LOG.read_bytes().decode().removesuffix("\n").split("\n")
    for line in before:
        print(line, flush=True)
        if arguments.at in MARKS and MARKS[arguments.at] in line:
            act(arguments)
    with FakeServer(arguments):
        print(last, flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
