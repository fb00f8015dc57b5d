"""The other engines' part of a comparison: each a server of its own, asked the same messages by the same client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from engine.client import CompletionRequest, run_concurrently
from engine.compare_board import Board
from engine.compare_plan import Plan, messages_of, numbers_of_users, peers_of, texts
from engine.compare_results import LaneState, Mode, Repeat
from engine.config import CompareConfig, Device, Settings
from engine.environment import Hardware
from engine.errors import LabError
from engine.models import ModelSource
from engine.peers.launching import PEERS, Peer
from engine.peers.server import PeerServer

Watched = Callable[[str, Hardware, int | None], AbstractContextManager[None]]
# A chat template's own words.
TEMPLATE_TOKENS = 256


def require_installed(config: CompareConfig) -> None:
    """Raises ConfigError with what to do, where a peer is not there."""
    for name in peers_of(config):
        if (missing := PEERS[name].missing()) is not None:
            raise missing


def context_tokens(config: CompareConfig) -> int:
    """Room for one prompt and its answer, in whole steps of 256 tokens: no tokenizer makes more of it than bytes."""
    need = len(config.prompt.encode()) + TEMPLATE_TOKENS + config.max_tokens
    return -(-need // 256) * 256


class PeerPart:
    """Measures one peer after the other; what is found goes to the board."""

    def __init__(
        self,
        settings: Settings,
        board: Board,
        cancel: threading.Event,
        say: Callable[[str], None],
        check: Callable[[], None],
        watched: Watched,
    ) -> None:
        """``watched(engine, hardware, pid)`` tells when something else computed meanwhile."""
        self._settings, self._board, self._cancel = settings, board, cancel
        self._say, self._check, self._watched = say, check, watched

    def announce(self, config: CompareConfig, source: ModelSource, hardware: Hardware) -> None:
        """Say what each will run; raises ConfigError for one that can't run this model."""
        for name in peers_of(config):
            self._board.note(f"{PEERS[name].label} ran {PEERS[name].weights(source)}.")
        if hardware.device != Device.CPU and "llamacpp" in peers_of(config):
            self._board.note("llama.cpp ran on the processor, not on the GPU: that is how the lab builds it.")

    def measure(
        self, config: CompareConfig, source: ModelSource, hardware: Hardware, plan: Plan | None
    ) -> dict[str, str]:
        """Every peer that was asked for; returns their commands."""
        return {name: self._measure(PEERS[name], config, source, hardware, plan) for name in peers_of(config)}

    def _measure(
        self, peer: Peer, config: CompareConfig, source: ModelSource, hardware: Hardware, plan: Plan | None
    ) -> str:
        self._board.lane(peer.name, state=LaneState.LOADING)
        self._say(f"Starting {peer.label}")
        users, context = max(numbers_of_users(config)), context_tokens(config)
        with PeerServer(peer, source, hardware, self._settings, users=users, context_tokens=context) as server:
            server.wait_ready(self._check)
            with self._watched(peer.name, hardware, server.pid):
                for count in numbers_of_users(config):
                    repeats = self._measure_users(server, config, count)
                    if count == 1:
                        self._note_prompt_length(peer, repeats, plan)
            self._board.lane(peer.name, state=LaneState.DONE)
            return server.command

    def _measure_users(self, server: PeerServer, config: CompareConfig, users: int) -> list[Repeat]:
        repeats: list[Repeat] = []
        name = server.peer.name
        try:
            for number in range(config.repeats + 1):
                self._check()
                self._board.begin_repeat(name, Mode.CONCURRENT, users, number)
                repeat = self._repeat(server, config, users)
                if number:
                    repeats.append(repeat)
        finally:
            memory = server.memory_bytes() if repeats else None
            self._board.add(name, users, Mode.CONCURRENT, repeats, load_s=server.load_s, memory_bytes=memory)
        return repeats

    def _repeat(self, server: PeerServer, config: CompareConfig, users: int) -> Repeat:
        forced = server.peer.forced(config.max_tokens)
        requests = [
            CompletionRequest(
                messages=messages_of(text), max_tokens=config.max_tokens, length_forced=True, extra=forced
            )
            for text in texts(config, users)
        ]
        began_s = time.perf_counter()

        def on_text(_: int, text: str, now_s: float) -> None:
            if users == 1:
                self._board.piece(server.peer.name, text, now_s - began_s)

        traces = run_concurrently(server.endpoint, requests, on_text, self._cancel)
        self._check()
        try:
            return Repeat.from_traces(traces)
        except LabError as error:
            raise server.cause_of(error) from error

    def _note_prompt_length(self, peer: Peer, repeats: list[Repeat], plan: Plan | None) -> None:
        """A chat template of its own may make another number of tokens of the same message."""
        first = plan[1][0][0] if plan else None
        counted = next((repeat.prompt_tokens for repeat in repeats if repeat.prompt_tokens is not None), None)
        if isinstance(first, list) and counted is not None and counted != len(first):
            self._board.note(f"{peer.label} counted {counted} prompt tokens where vLLM's tokeniser makes {len(first)}.")
