"""The limits of a load test: its settings, their names on the command line, and what a level is held against."""

from __future__ import annotations

from engine.config import LoadTestConfig
from engine.metrics import Slo

# Settings of a LoadTestConfig, and what ``--slo`` calls them.
SLO_FIELDS = {"slo_ttft_ms": "ttft", "slo_tpot_ms": "tpot", "slo_e2e_ms": "e2e"}


def slo_of(config: LoadTestConfig) -> Slo:
    return Slo(ttft_ms=config.slo_ttft_ms, tpot_ms=config.slo_tpot_ms, e2e_ms=config.slo_e2e_ms)


def limits_of(config: LoadTestConfig) -> dict[str, float]:
    """The limits that are set, ms, by their names on the command line."""
    given = {name: getattr(config, field) for field, name in SLO_FIELDS.items()}
    return {name: limit for name, limit in given.items() if limit is not None}
