"""Builds llama.cpp's own server into .llama, for ``make llama``. Standard library only; needs cmake and a C++ compiler.

The source is that of the MIT-licensed package ``llama-cpp-python`` (``requirements-llama.txt``), which carries all of
llama.cpp. The Python server in that package answers one request at a time; ``llama-server`` batches them, as vLLM does.
The stamp is written last, so a killed build is repeated, never half believed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / ".llama"
STAMP = TARGET / "stamp"
PYTHON = ROOT / ".venv" / "bin" / "python"
REQUIREMENTS = ROOT / "requirements-llama.txt"
PROGRAM = "llama-server"
SOURCE_PART = "/vendor/llama.cpp/"
# No tests, no web page, no network: the server that the lab measures, and that alone.
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
TAIL_LINES = 15


def main() -> int:
    if STAMP.is_file() and STAMP.read_text() == _digest() and (TARGET / PROGRAM).exists():
        print(f"llama.cpp is built already: {TARGET / PROGRAM}")
        return 0
    for name, remedy in (("cmake", "apt install cmake"), ("c++", "apt install g++")):
        if shutil.which(name) is None:
            print(
                f"Building llama.cpp needs {name}. Install it ({remedy}), then run make llama again.", file=sys.stderr
            )
            return 1
    began_s = time.monotonic()
    print("Building llama.cpp: about five minutes on two cores …", flush=True)
    with tempfile.TemporaryDirectory(prefix="lab-llama-") as scratch:
        try:
            _build(Path(scratch))
        except subprocess.CalledProcessError as error:
            words = " ".join(map(str, error.cmd[:4]))
            last = "\n".join(str(error.output).splitlines()[-TAIL_LINES:])
            print(f"llama.cpp could not be built: {words} …\n{last}", file=sys.stderr)
            return 1
    print(f"llama.cpp: done in {time.monotonic() - began_s:.0f} s. Compare has it as a lane now.")
    return 0


def _build(scratch: Path) -> None:
    pip = (str(PYTHON), "-m", "pip", "download", "--disable-pip-version-check", "--quiet")
    _call(*pip, "--no-deps", "--no-binary", ":all:", "--dest", str(scratch), "-r", str(REQUIREMENTS))
    source = _unpack(next(scratch.glob("*.tar.gz")), scratch / "source")
    build = scratch / "build"
    _call("cmake", "-S", str(source), "-B", str(build), *(f"-D{name}={value}" for name, value in OPTIONS.items()))
    cores = len(os.sched_getaffinity(0))
    _call("cmake", "--build", str(build), "--target", PROGRAM, "--parallel", str(cores))
    STAMP.unlink(missing_ok=True)
    TARGET.mkdir(exist_ok=True)
    shutil.copy2(source / "LICENSE", TARGET / "LICENSE")
    shutil.copy2(build / "bin" / PROGRAM, TARGET / f"{PROGRAM}.new")
    (TARGET / f"{PROGRAM}.new").replace(TARGET / PROGRAM)
    STAMP.write_text(_digest())


def _unpack(archive: Path, into: Path) -> Path:
    """Only llama.cpp out of the package; returns its folder."""
    with tarfile.open(archive) as package:
        members = [member for member in package.getmembers() if SOURCE_PART in f"/{member.name}/"]
        package.extractall(into, members=members, filter="data")
    return next(into.glob(f"*{SOURCE_PART}"))


def _call(*command: str) -> None:
    """Raises CalledProcessError with all that it wrote."""
    subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
