"""The running server's particulars on disk, so that another process can use it and a later one can clean up.

One small JSON file, readable by its owner only: it holds the API key.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.config import Endpoint
from engine.errors import ServerFailed
from engine.server.processes import boot_id, group_members, is_ours, kill_group

FILE_NAME = "server.json"
# Of the folder for sockets and temporary files that every server gets.
SCRATCH_PREFIX = "vllm-lab-"


@dataclass(frozen=True)
class ServerRecord:
    """``pid`` leads the server's process group since ``ticks`` (clock ticks after the boot ``boot``)."""

    pid: int
    ticks: int
    base_url: str
    api_key: str
    model: str
    ready: bool
    config: dict[str, Any]
    source: dict[str, Any]
    command: str
    log_path: str
    max_model_len: int | None = None
    ready_after_s: float | None = None
    scratch: str = ""
    boot: str = field(default_factory=boot_id)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.base_url, self.model, self.api_key, self.max_model_len)

    @property
    def alive(self) -> bool:
        return self.boot == boot_id() and is_ours(self.pid, self.ticks)


def write_record(state_dir: Path, record: ServerRecord) -> None:
    """Replace the record in one step; nobody else may read it."""
    state_dir.mkdir(parents=True, exist_ok=True)
    target = state_dir / FILE_NAME
    fresh = target.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(record), file)
    fresh.replace(target)


def read_record(state_dir: Path) -> ServerRecord | None:
    """The record, or None where there is none or it can't be read."""
    try:
        return ServerRecord(**json.loads((state_dir / FILE_NAME).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def drop_record(state_dir: Path) -> None:
    (state_dir / FILE_NAME).unlink(missing_ok=True)


def end_leftover(state_dir: Path) -> list[int]:
    """End the server that an earlier run left behind, if one is still there; returns the processes ended.

    Only to be called by the owner of the data folder. Raises ServerFailed when some can't be ended.
    """
    record = read_record(state_dir)
    if record is None:
        return []
    members = group_members(record.pid) if record.alive else []
    if members:
        _, left = kill_group(record.pid)
        if left:
            raise ServerFailed(f"Processes {left} of an earlier server can't be ended.", "End them by hand.")
    if Path(record.scratch).name.startswith(SCRATCH_PREFIX):
        shutil.rmtree(record.scratch, ignore_errors=True)
    drop_record(state_dir)
    return members
