"""Fixtures of the engine's tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervised import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.gate.touch()
    made.supervisor.close()
    left = made.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
