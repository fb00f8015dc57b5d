"""The environment check: what can be looked up, and one real generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from engine.baseline import HfBaseline
from engine.client import CompletionRequest, run_concurrently
from engine.config import DEFAULT_MODEL, Endpoint, ServerConfig, Settings
from engine.environment import Check, Environment, collect, static_checks
from engine.errors import LabError
from engine.models import prepare
from engine.server.command import resolved_dtype
from engine.server.record import read_record

NAME = "Real generation"
TOKENS = 5
PROMPT_IDS = [1, 2, 3, 4]


@dataclass(frozen=True)
class Report:
    """All lines; ready when every one is ok."""

    checks: tuple[Check, ...]
    environment: Environment

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ready": self.ready,
            "checks": [asdict(check) for check in self.checks],
            "environment": self.environment.to_dict(),
        }


def run_checks(settings: Settings, *, generate: bool, progress: Callable[[str], None]) -> Report:
    """Look everything up; generate through the running server, or else with Hugging Face in a child."""
    environment = collect(settings)
    checks = static_checks(environment, settings)
    if generate:
        progress("One real generation …")
        running = read_record(settings.state_dir)
        if running is not None and running.ready and running.alive:
            checks += (generation_check(running.endpoint),)
        else:
            checks += (_baseline_check(settings, environment, progress),)
    return Report(checks, environment)


def generation_check(endpoint: Endpoint) -> Check:
    """Five tokens from the running server."""
    trace = run_concurrently(endpoint, [CompletionRequest(prompt="Hello", max_tokens=TOKENS, ignore_eos=True)])[0]
    failure = trace.failure()
    if failure is not None:
        return Check(NAME, False, str(failure), "Look at the Server page.")
    return Check(NAME, True, f"{trace.output_tokens} tokens from vLLM in {trace.e2e_ms or 0:.0f} ms")


def _baseline_check(settings: Settings, environment: Environment, progress: Callable[[str], None]) -> Check:
    try:
        source = prepare(DEFAULT_MODEL, settings, progress)
        dtype = resolved_dtype(ServerConfig(), environment.hardware, source)
        with HfBaseline(source.path, environment.hardware, settings.logs_dir, dtype) as baseline:
            baseline.load()
            done = baseline.generate([PROMPT_IDS], TOKENS)
    except LabError as error:
        return Check(NAME, False, error.cause, error.remedy or "Run make setup.")
    return Check(NAME, True, f"{done.traces[0].output_tokens} tokens from Hugging Face in {done.wall_s * 1000:.0f} ms")
