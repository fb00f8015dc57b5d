"""One peer as a guarded child server: ready when it has answered with a token, gone when the app is gone."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from engine.config import Endpoint, Settings
from engine.endpoint_api import probe_one_token
from engine.environment import Hardware
from engine.errors import LabError, RequestRejected, ServerFailed, ServerNotReady
from engine.models import ModelSource
from engine.peers.launching import Peer, Start
from engine.server.child import ServerChild
from engine.server.life import free_port
from engine.server.log import prune, tail
from engine.server.processes import group_members, proportional_bytes

READY_TIMEOUT_S = 300.0
POLL_S = 0.2
ILLEGAL_INSTRUCTION = -4
LOADING = 503
LAST_LINES = 20


class PeerServer:
    """Use as a context manager. Raises ConfigError where it isn't installed, ServerFailed where it doesn't start."""

    def __init__(
        self,
        peer: Peer,
        source: ModelSource,
        hardware: Hardware,
        settings: Settings,
        *,
        users: int = 1,
        context_tokens: int = 2048,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        """Starts at once; ``users`` requests fit at the same time, each with ``context_tokens``."""
        if (missing := peer.missing()) is not None:
            raise missing
        key, port = secrets.token_urlsafe(32), free_port()
        launch = peer.launch(Start(source, hardware, port, key, users, context_tokens))
        settings.logs_dir.mkdir(parents=True, exist_ok=True)
        prune(settings.logs_dir, f"{peer.name}-*.log")
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1_000_000:06d}"
        self.log_path = settings.logs_dir / f"{peer.name}-{stamp}.log"
        self.peer, self.command = peer, launch.shell_line().replace(key, "…")
        self.endpoint = Endpoint(
            f"http://127.0.0.1:{port}/v1",
            peer.model_name(source),
            key if peer.keyed else None,
            max_model_len=context_tokens,
            engine=peer.name,
        )
        self.load_s: float | None = None
        self._began_s = time.monotonic()
        try:
            self._child = ServerChild(launch, self.log_path, os.environ if inherited is None else inherited)
        except ServerFailed as error:
            raise ServerFailed(error.cause.replace("vLLM", peer.label), error.remedy) from error

    @property
    def pid(self) -> int | None:
        """Also the number of its process group."""
        return self._child.pid

    def wait_ready(self, check: Callable[[], None] = lambda: None, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Seconds from its start to its first token. ``check`` is called often; what it raises ends the wait."""
        deadline = self._began_s + timeout_s
        while time.monotonic() < deadline:
            check()
            if (ended := self._child.exit) is not None:
                raise self._death(ended.code)
            if self._answers():
                self.load_s = time.monotonic() - self._began_s
                return self.load_s
            time.sleep(POLL_S)
        raise ServerFailed(f"{self.peer.label} did not answer within {timeout_s:.0f} s.", f"See {self.log_path}.")

    def memory_bytes(self) -> int | None:
        """What all its processes occupy (PSS)."""
        return proportional_bytes(group_members(self.pid)) if self.pid is not None else None

    def cause_of(self, failure: LabError) -> LabError:
        """Why a request failed: that the server died, where it did."""
        ended = self._child.wait(1.0)
        return self._death(ended.code) if ended is not None else failure

    def close(self) -> None:
        """End it and wait until its whole process group is gone."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            probe_one_token(self.endpoint)
        except ServerNotReady:
            return False
        except RequestRejected as error:
            if error.status != LOADING:  # llama.cpp listens before it has loaded
                raise
            return False
        return True

    def _death(self, code: int | None) -> ServerFailed:
        label = self.peer.label
        if code == ILLEGAL_INSTRUCTION:
            return ServerFailed(f"{label} was built for another processor.", "Delete .llama and run make llama again.")
        last = next((line.strip() for line in reversed(tail(self.log_path, LAST_LINES)) if line.strip()), "no message")
        return ServerFailed(f"{label} ended with code {code}: {last}", f"See {self.log_path}.")
