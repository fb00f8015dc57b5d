"""CPU time of everything else: computed from readings, and read on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from engine.config import Device
from engine.telemetry import host
from engine.telemetry.host import CoreWatch, CpuReading, OtherWork, other_cores, read_cpu
from tests.ui import fakes


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


def readings(monkeypatch: pytest.MonkeyPatch, *readings: CpuReading) -> None:
    upcoming = iter(readings)
    monkeypatch.setattr(host, "read_cpu", lambda cores, pgid: next(upcoming))


def test_a_watch_tells_what_other_programs_did_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    readings(monkeypatch, CpuReading(100.0, 5.0, 1.0), CpuReading(102.0, 8.0, 3.0))
    assert CoreWatch(fakes.environment().hardware, 1).read() == OtherWork(0.5, 2)


def test_too_short_a_time_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    readings(monkeypatch, CpuReading(100.0, 5.0, 1.0), CpuReading(100.2, 5.4, 1.0))
    assert CoreWatch(fakes.environment().hardware, 1).read() is None


@pytest.mark.parametrize(("device", "pid"), [(Device.CUDA, 1), (Device.CPU, None)])
def test_nothing_is_read_where_the_cores_do_not_compute_or_the_server_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, device: Device, pid: int | None
) -> None:
    readings(monkeypatch)  # none may be taken
    assert CoreWatch(fakes.environment(device).hardware, pid).read() is None


@pytest.mark.parametrize(("busy_cores", "disturbs"), [(0.4, False), (0.41, True)])
def test_more_than_a_fifth_of_the_cores_disturbs(busy_cores: float, disturbs: bool) -> None:
    work = OtherWork(busy_cores, 2)
    assert work.disturbs is disturbs
    assert "kept 0.4 of 2 cores busy" in str(work)
