"""The real app as a process, with the real vLLM behind it, for the end-to-end tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from engine.config import Settings
from engine.server.life import free_port
from engine.server.processes import group_members
from engine.server.record import ServerRecord, read_record

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
READY_S = 300.0
POLL_S = 0.2


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """The first value of ``look`` that is not None or False; fails with ``what`` when time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(POLL_S)
    raise AssertionError(f"Waited {timeout_s:.0f} s for {what}.")


def data_folder(folder: Path) -> Path:
    """An empty data folder that shares the prepared model with the project's own."""
    folder.mkdir(parents=True, exist_ok=True)
    prepared = ROOT / "data" / "models"
    if prepared.is_dir():
        (folder / "models").symlink_to(prepared)
    return folder


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    return os.environ | {"LAB_DATA_DIR": str(data_dir), "LAB_AUTOSTART": "1", "STREAMLIT_SERVER_HEADLESS": "1"} | more


def cli(data_dir: Path, *words: str, timeout_s: float = 400.0) -> tuple[dict[str, Any], int]:
    """``python -m engine … --json``: the one JSON document of its standard output, and the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "engine", *words, "--json"],
        cwd=ROOT,
        env=environment(data_dir),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return json.loads(done.stdout), done.returncode


class App:
    """``make run`` without the installing."""

    def __init__(self, data_dir: Path, **more: str) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = data_dir / "app.log"
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "components.launch"],
                cwd=ROOT,
                env=environment(data_dir, LAB_PORT=str(self.port), **more),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def record(self) -> ServerRecord | None:
        return read_record(Settings(self.data_dir).state_dir)

    def server(self) -> ServerRecord:
        """The server once it is ready."""
        return wait_for("a ready server", self._ready, READY_S)

    def _ready(self) -> ServerRecord | None:
        assert self.process.poll() is None, self.output.read_text()
        found = self.record()
        return found if found is not None and found.ready else None

    def kill(self) -> None:
        """As if the machine's memory had run out: no chance to clean up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


def gone(record: ServerRecord) -> bool:
    """Whether no process of a server's group is left."""
    return not group_members(record.pid)
