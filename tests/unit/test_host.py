"""CPU time of everything else: computed from readings, and read on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine.telemetry.host import CpuReading, other_cores, read_cpu


@pytest.mark.parametrize(
    ("busy_s", "group_s", "others"),
    [(20.0, 15.0, 0.5), (20.0, 20.0, 0.0), (20.0, 20.5, 0.0), (20.0, 0.0, 2.0)],
)
def test_what_is_not_the_groups_is_others(busy_s: float, group_s: float, others: float) -> None:
    before, after = CpuReading(100.0, 5.0, 1.0), CpuReading(110.0, 5.0 + busy_s, 1.0 + group_s)
    assert other_cores(before, after) == pytest.approx(others)


def test_no_time_is_no_share() -> None:
    now = CpuReading(1.0, 1.0, 1.0)
    assert other_cores(now, now) is None


def test_only_the_named_cores_count_and_waiting_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def core(**times: float) -> Any:
        return SimpleNamespace(_asdict=lambda: times)

    cores = [
        core(user=1.0, system=2.0, idle=50.0, iowait=9.0, guest=1.0),
        core(user=100.0, idle=0.0),
        core(user=4.0, idle=1.0),
    ]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    assert read_cpu((0, 2, 7), os.getpgid(0)).busy_s == 7.0


def test_the_groups_own_work_is_read() -> None:
    code = "import sys\nwhile True:\n    sum(range(10**6))\n    print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as worker:
        assert worker.stdout is not None
        before = read_cpu((0,), worker.pid)
        while read_cpu((0,), worker.pid).group_s - before.group_s < 0.2:
            worker.stdout.readline()
        worker.kill()
    assert read_cpu((0,), worker.pid).group_s == 0.0
