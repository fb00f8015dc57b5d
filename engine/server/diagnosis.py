"""A failed server's log → what happened, what to do, and the lines that prove it.

The most exact explanation wins, whatever its place in the log: a known failure (``failures.yaml``), then the
first exception of the engine process, then the API server's own, then what only wraps these (“Engine core
initialization failed”), then the exit code in words. The last line of a log is nearly always a wrapper.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from engine.config import ServerConfig
from engine.server.failures import Rule, Scope, fill, load_rules
from engine.server.state import Diagnosis

HEAD_BYTES = TAIL_BYTES = 2 * 1024 * 1024
LINES_AROUND = 2
WINDOW = 50
LAST_LINES = 8
MAX_LINE_CHARS = 400
READY_MARK = "Application startup complete"
TRACEBACK = "Traceback (most recent call last):"
QUIET_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})
# Exceptions that only say that another process had one.
WRAPPERS = (
    "Engine core initialization failed",
    "EngineDeadError",
    "EngineCore encountered an issue",
    "WorkerProc initialization failed",
    "RuntimeError: Executor failed.",
    "RuntimeError: cancelled",  # the engine gave up waiting for a worker that is gone
)
# Part of every stop, also of a failed start's: says nothing about the cause.
NOISE = re.compile(
    r"\[shutdown\]|^[\s^~]*$|^nanobind: | - leaked |^ - \.\.\. skipped|nanobind\.readthedocs|resource_tracker"
)
STOP_ASKED = "[shutdown] API server: shutdown triggered"
# Where the report of an exception begins again, as the interpreter's own.
REPEATED = re.compile(r"^Process \S+:$|^Traceback \(")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PREFIX = re.compile(
    r"^(?:\((?P<process>[\w.-]+)(?: [^()]*)?\bpid=\d+[^()]*\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?::\s+| \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[^\]\s]+:\d+\] ?))?"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: |:?$)")
ENGINE_PROCESS = re.compile(r"Engine|Worker|Rank", re.IGNORECASE)
SIGNAL_WORDS = {
    signal.SIGKILL: "was killed (SIGKILL): by the system because memory ran out, or by someone",
    signal.SIGILL: "was stopped by an illegal instruction (SIGILL): this CPU lacks one that vLLM was built with",
    signal.SIGSEGV: "was stopped by a memory access error in compiled code (SIGSEGV)",
    signal.SIGABRT: "was aborted by compiled code (SIGABRT)",
    signal.SIGBUS: "was stopped by a bus error (SIGBUS): often a full disk or too little shared memory",
    signal.SIGTERM: "was asked to stop by another program (SIGTERM)",
    signal.SIGINT: "was interrupted (SIGINT)",
    signal.SIGHUP: "was stopped because its terminal closed (SIGHUP)",
}


@dataclass(frozen=True)
class LogLine:
    """One line without its prefix; ``process`` and ``level`` are empty where the line names none."""

    text: str
    process: str
    level: str

    @property
    def quiet(self) -> bool:
        """Said in passing: no failure is explained by it as long as there is anything else."""
        return self.level in QUIET_LEVELS or self.text.startswith("$ ")

    @property
    def noise(self) -> bool:
        return NOISE.search(self.text) is not None


def diagnose(lines: Sequence[str], *, exit_code: int | None, config: ServerConfig, was_ready: bool) -> Diagnosis:
    """Explain why a server did not start (``was_ready`` False) or died (True).

    ``exit_code`` is subprocess's: negative for a signal, None while the process still runs. Never raises for
    any log, an empty one included.
    """
    whole = [parse_line(line) for line in lines]
    log = _after_start(_before_stop(whole)) if was_ready else _before_stop(whole)
    scopes = (Scope.SERVER, Scope.ANY) if was_ready else tuple(Scope)
    rules = [rule for rule in load_rules() if rule.scope in scopes]
    exact = [rule for rule in rules if not rule.generic]
    spoken = [None if line.quiet or line.noise else line for line in log]
    everything: list[LogLine | None] = list(log)
    return (
        _known(exact, spoken, log, config)
        or _first_exception(spoken, log, engine_only=True)
        # While serving, the API server's exceptions are those of single requests, which end no server.
        or (None if was_ready else _first_exception(spoken, log, engine_only=False))
        or _known([rule for rule in rules if rule.generic], everything, log, config)
        or _known(exact, everything, log, config)
        or _by_exit_code(rules, log, exit_code, config)
        or _unknown(whole, exit_code, was_ready)
    )


def diagnose_file(path: Path, *, exit_code: int | None, config: ServerConfig, was_ready: bool) -> Diagnosis:
    """``diagnose`` for a log file: at most its first and its last 2 MiB are read; a missing file counts as empty."""
    return diagnose(read_lines(path), exit_code=exit_code, config=config, was_ready=was_ready)


def diagnose_request_error(message: str) -> Diagnosis | None:
    """Explain an error that one request got from a healthy server; None where it says enough itself."""
    log = [parse_line(line) for line in message.splitlines()]
    rules = [rule for rule in load_rules() if rule.scope in (Scope.REQUEST, Scope.ANY)]
    return _known(rules, log, log, None)


def read_lines(path: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> list[str]:
    """The lines of a file, without the middle of a huge one."""
    try:
        with path.open("rb") as file:
            head = file.read(head_bytes)
            size = file.seek(0, 2)
            file.seek(max(len(head), size - tail_bytes))
            tail = file.read(tail_bytes)
    except FileNotFoundError:
        return []
    if size > head_bytes + tail_bytes:
        # Both ends of the gap are cut lines.
        head, tail = head.rpartition(b"\n")[0] + b"\n", tail.partition(b"\n")[2]
    return (head + tail).decode("utf-8", "replace").splitlines()


def parse_line(line: str) -> LogLine:
    """Split ``(EngineCore pid=7) ERROR 12-01 04:44:48 [core.py:1231] text`` into its parts."""
    plain = COLOUR.sub("", line).rstrip()
    found = PREFIX.match(plain)
    if found is None:
        return LogLine(plain, "", "")
    return LogLine(plain[found.end() :], found["process"] or "", found["level"] or "")


def exit_words(exit_code: int | None) -> str:
    """How a process ended, as the second half of a sentence; negative and 128 + n are signals."""
    if exit_code is None:
        return "is still running"
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        name = signal.Signals(number)
    except ValueError:
        return f"ended with exit code {exit_code}"
    return SIGNAL_WORDS.get(name, f"was stopped by the signal {name.name}")


def _before_stop(log: list[LogLine]) -> list[LogLine]:
    """Requests that a stop cuts off look like an engine's death: what follows a stop explains nothing."""
    marks = [index for index, line in enumerate(log) if STOP_ASKED in line.text]
    return log[: marks[0]] if marks else log


def _after_start(log: list[LogLine]) -> list[LogLine]:
    marks = [index for index, line in enumerate(log) if READY_MARK in line.text]
    return log[marks[-1] + 1 :] if marks else log


def _known(
    rules: Iterable[Rule], candidates: Sequence[LogLine | None], log: Sequence[LogLine], config: ServerConfig | None
) -> Diagnosis | None:
    """The first rule that any line matches; ``candidates`` are the lines of ``log``, None for those left out."""
    for rule in rules:
        for index, line in enumerate(candidates):
            if line is not None and rule.matches(line.text):
                return _from_rule(rule, log, index, config)
    return None


def _from_rule(rule: Rule, log: Sequence[LogLine], index: int, config: ServerConfig | None) -> Diagnosis:
    groups = rule.groups(log[index].text)
    return _diagnosis(rule, groups, _around(log, index), config)


def _diagnosis(rule: Rule, groups: dict[str, str], evidence: tuple[str, ...], config: ServerConfig | None) -> Diagnosis:
    values = {**(config.to_dict() if config else {}), **groups}
    return Diagnosis(
        name=rule.name,
        cause=fill(rule.cause, values),
        remedy=fill(rule.remedy, values),
        evidence=evidence,
        fix=rule.fix(config, groups) if config else None,
    )


def _first_exception(
    candidates: Sequence[LogLine | None], log: Sequence[LogLine], *, engine_only: bool
) -> Diagnosis | None:
    """The root of the first traceback: Python prints causes before what they led to."""
    for index in _exceptions(candidates):
        line = log[index]
        if any(words in line.text for words in WRAPPERS):
            continue
        if engine_only and not ENGINE_PROCESS.search(line.process):
            continue
        where = "engine" if ENGINE_PROCESS.search(line.process) else "server"
        return Diagnosis(
            name="exception",
            cause=f"The {where} stopped with {_clip(_whole_message(log, index))}",
            remedy="This failure is not a known one. Look at the lines below and at the log around them.",
            evidence=_around(log, index),
        )
    return None


def _exceptions(candidates: Sequence[LogLine | None]) -> Iterable[int]:
    """Where tracebacks end, for each process on its own: the lines of several are mixed in one file."""
    inside: set[str] = set()
    for index, line in enumerate(candidates):
        if line is None:
            continue
        if line.text.startswith(TRACEBACK):
            inside.add(line.process)
        elif line.process in inside and line.text and EXCEPTION.match(line.text):
            inside.discard(line.process)
            yield index


def _whole_message(log: Sequence[LogLine], index: int) -> str:
    """A validation error says on the next line what is wrong."""
    line = log[index]
    following = log[index + 1] if index + 1 < len(log) else None
    if following and following.process == line.process and "validation error" in line.text:
        return f"{line.text}: {following.text.strip()}"
    return line.text


def _by_exit_code(
    rules: Iterable[Rule], log: Sequence[LogLine], exit_code: int | None, config: ServerConfig
) -> Diagnosis | None:
    for rule in rules:
        if exit_code in rule.exit_codes:
            return _diagnosis(rule, {}, _last_lines(log), config)
    return None


def _unknown(log: Sequence[LogLine], exit_code: int | None, was_ready: bool) -> Diagnosis:
    if was_ready:
        what = "stopped answering" if exit_code is None else "died while it was serving"
    else:
        what = "did not become ready"
    how = exit_words(exit_code) + (", although the lab did not ask it to" if exit_code == 0 else "")
    if any(STOP_ASKED in line.text for line in log):
        how = "was asked to stop by another program"
    return Diagnosis(
        name="unknown",
        cause=f"The server {what}: its process {how}.",
        remedy="Look at the last lines below and start it again; if it happens again, try smaller settings.",
        evidence=_last_lines(log),
    )


def _around(log: Sequence[LogLine], index: int) -> tuple[str, ...]:
    """The line and up to two on each side, of the same process: others' are mixed in between."""
    process = log[index].process
    before = _same_process(log[max(0, index - WINDOW) : index], process)
    after = takewhile(
        lambda line: not REPEATED.match(line.text), _same_process(log[index + 1 : index + WINDOW], process)
    )
    return tuple(_clip(line.text) for line in (*before[-LINES_AROUND:], log[index], *islice(after, LINES_AROUND)))


def _same_process(lines: Iterable[LogLine], process: str) -> list[LogLine]:
    return [line for line in lines if line.process == process and not line.noise]


def _last_lines(log: Sequence[LogLine]) -> tuple[str, ...]:
    return tuple(_clip(line.text) for line in [line for line in log if not line.noise][-LAST_LINES:])


def _clip(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"
