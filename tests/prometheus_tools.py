"""Prometheus and promtool for the tests: installed ones, else Debian's package unpacked below ``.venv``.

``python -m tests.prometheus_tools`` finds or fetches them and prints where. Nothing is installed on the system. Exit
code 1 only under ``CI=true`` without them; elsewhere the tests that need them are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.browser import in_ci

UNPACKED = Path(__file__).resolve().parent.parent / ".venv" / "prometheus"
FETCH_TIMEOUT_S = 180
NONE_HERE = "No Prometheus here; `python -m tests.prometheus_tools` fetches Debian's."


@dataclass(frozen=True)
class Tools:
    """Paths of both executables, or None and the ``reason`` why there are none."""

    prometheus: Path | None
    promtool: Path | None
    reason: str = ""


def find() -> Tools:
    """What is here already; downloads nothing."""
    folder = str(UNPACKED / "usr" / "bin")
    server = shutil.which("prometheus") or shutil.which("prometheus", path=folder)
    tool = shutil.which("promtool") or shutil.which("promtool", path=folder)
    if server and tool:
        return Tools(Path(server), Path(tool))
    return Tools(None, None, NONE_HERE)


def find_or_fetch() -> Tools:
    """Those that are here, else Debian's, else why there are none."""
    found = find()
    if found.prometheus:
        return found
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return Tools(None, None, "No Prometheus here, and no apt-get to fetch Debian's.")
    failure = _fetch()
    if failure and os.geteuid() == 0 and not _run(["apt-get", "update", "-q"], Path("/")):
        failure = _fetch()
    found = find()
    return found if found.prometheus else Tools(None, None, f"No Prometheus here; Debian's can't be had: {failure}")


def _fetch() -> str:
    """Empty when it worked, else why not. The package is unpacked beside and put in place last."""
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as name:
        folder = Path(name)
        if failure := _run(["apt-get", "download", "-q", "prometheus"], folder):
            return failure
        packages = list(folder.glob("prometheus_*.deb"))
        if not packages:
            return "apt-get download left no package"
        if failure := _run(["dpkg-deb", "-x", str(packages[0]), str(folder / "unpacked")], folder):
            return failure
        shutil.rmtree(UNPACKED, ignore_errors=True)
        (folder / "unpacked").rename(UNPACKED)
    return ""


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return "" if not done.returncode else lines[-1] if lines else f"exit code {done.returncode}"


def main() -> int:
    tools = find_or_fetch()
    if tools.prometheus:
        print(f"      {tools.prometheus}")
        return 0
    print(f"      {tools.reason} The tests with Prometheus {'fail' if in_ci() else 'are skipped'}.")
    return 1 if in_ci() else 0


if __name__ == "__main__":
    sys.exit(main())
