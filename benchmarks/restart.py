"""How long a restart takes: the lab's, from slider to ready, against a cold start of plain vLLM, seconds by phase.

    python -m benchmarks.restart [--rounds 5]

In turn, so that a machine that drifts shows as spread: vLLM is started as the command that the lab shows would start
it, in a process that has imported nothing, and stopped again; then the lab's own server, which runs already, is
restarted with another max_num_seqs. Both come up with the same settings. Ready means that a first token came back.
``cold_s`` counts from the press of Start, ``restart_s`` from the change of the setting and has the stop of the old
server in it. The first start of a lab, which imports once for all that follow, is told beside them. Memory is PSS: what
processes share is counted once. One JSON document on stdout; exit code 0 when the median restart took at most half of
the median cold start.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from engine.config import ServerConfig, Settings
from engine.environment import collect
from engine.models import find_ready
from engine.server.processes import group_members, proportional_bytes
from engine.server.state import ServerSnapshot
from engine.server.supervisor import Supervisor
from engine.server.warm import WarmStarts
from engine.store import RunStore

TARGET_RATIO = 0.5
READY_S = 600.0
POLL_S = 0.02
MIB = 1024**2


def phases(snapshot: ServerSnapshot) -> dict[str, float | None]:
    return {item.phase.value: item.elapsed_s for item in snapshot.phases}


def cold_start(settings: Settings, config: ServerConfig) -> dict[str, Any]:
    """One start of a supervisor that has no zygote, and its end."""
    supervisor = Supervisor(settings, RunStore(settings.database))
    try:
        supervisor.start(config)
        ready = supervisor.wait_ready(READY_S)
        assert ready.pid is not None and not ready.forked
        return {
            "cold_s": ready.ready_after_s,
            "phases_s": phases(ready),
            "memory_mib": pss_mib(group_members(ready.pid)),
        }
    finally:
        supervisor.close()


def restart(supervisor: Supervisor, config: ServerConfig) -> dict[str, Any]:
    before = supervisor.snapshot().generation
    began = time.monotonic()
    supervisor.restart(config)
    while supervisor.snapshot().generation == before:
        time.sleep(POLL_S)
    stopped_s = time.monotonic() - began
    ready = supervisor.wait_ready(READY_S)
    assert ready.pid is not None and ready.forked
    return {
        "restart_s": time.monotonic() - began,
        "phases_s": {"stop": stopped_s} | phases(ready),
        "memory_mib": pss_mib(group_members(ready.pid)),
    }


def pss_mib(pids: list[int]) -> float | None:
    found = proportional_bytes(pids)
    return None if found is None else found / MIB


def medians(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Of every phase's seconds."""
    names = dict.fromkeys(name for one in rounds for name in one["phases_s"])
    found = {name: [one["phases_s"][name] for one in rounds if one["phases_s"].get(name) is not None] for name in names}
    return {name: median(values) for name, values in found.items() if values}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    here = Settings.from_env()
    if find_ready(ServerConfig.model, here) is None:
        raise SystemExit("The model is not prepared: run make setup.")
    cold: list[dict[str, Any]] = []
    warm: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "models").symlink_to(here.models_dir)
        settings = Settings(Path(folder), hub_offline=True)
        starts = WarmStarts(settings.logs_dir / "imports.log")
        lab = Supervisor(settings, RunStore(settings.database), warm=starts)
        try:
            lab.start(ServerConfig())
            first = lab.wait_ready(READY_S)
            for number in range(arguments.rounds):
                config = ServerConfig(max_num_seqs=ServerConfig.max_num_seqs - 1 - number)
                lab.stop(wait=True)
                cold.append(cold_start(settings, config))
                print(f"cold {cold[-1]['cold_s']:.1f} s", file=sys.stderr, flush=True)
                lab.start(ServerConfig())
                lab.wait_ready(READY_S)
                warm.append(restart(lab, config))
                print(f"restart {warm[-1]['restart_s']:.1f} s", file=sys.stderr, flush=True)
            zygote_beside = pss_mib(list(starts.pids()))
            lab.stop(wait=True)
            zygote_alone = pss_mib(list(starts.pids()))
        finally:
            lab.close()
    cold_s, restart_s = median(one["cold_s"] for one in cold), median(one["restart_s"] for one in warm)
    answer = {
        "cold_s": cold_s,
        "restart_s": restart_s,
        "ratio": restart_s / cold_s,
        "target_ratio": TARGET_RATIO,
        "ok": restart_s <= TARGET_RATIO * cold_s,
        "first_start_s": first.ready_after_s,
        "phases_s": {"cold": medians(cold), "restart": medians(warm)},
        "zygote_mib": {"beside_a_server": zygote_beside, "alone": zygote_alone},
        "rounds": {"cold": cold, "restart": warm},
        "environment": collect(here).to_dict(),
    }
    print(json.dumps(answer, indent=2))
    return 0 if answer["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
