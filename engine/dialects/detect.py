"""Which engine is this? Asked of the server itself, with proof; never guessed from an address or a model's name.

At most one small request for each route of the table, a few seconds in all; whatever fails is no proof.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from engine.config import Endpoint
from engine.dialects.table import UNKNOWN, Dialect, Sign, dialects
from engine.dialects.text import unquoted
from engine.errors import LabError
from engine.fetch import Reply, fetch

TIMEOUT_S = 3.0
BUDGET_S = 10.0
MODELS_PATH = "/v1/models"
MAX_VERSION_CHARS = 80


@dataclass(frozen=True)
class Detected:
    """``evidence`` is what the server said that proves it; empty, as is the version, where nothing did."""

    dialect: Dialect = UNKNOWN
    version: str | None = None
    evidence: str = ""

    @property
    def words(self) -> str:
        """Name and version for people."""
        return f"{self.dialect.name} {self.version or ''}".strip()

    @property
    def known(self) -> bool:
        return self.dialect is not UNKNOWN


def detect(endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S, budget_s: float = BUDGET_S) -> Detected:
    """Ask the server what engine it is; an engine that isn't in the table, or says nothing, is ``UNKNOWN``."""
    questions = _Questions(endpoint, timeout_s, time.monotonic() + budget_s)
    return _by_signs(questions, early=True) or _by_metrics(questions) or _by_signs(questions, early=False) or Detected()


class _Questions:
    """One server, each route asked once."""

    def __init__(self, endpoint: Endpoint, timeout_s: float, deadline: float) -> None:
        self._endpoint, self._timeout_s, self._deadline = endpoint, timeout_s, deadline
        self._replies: dict[str, Reply | None] = {}

    def text(self, path: str) -> str:
        """The body of a good reply, else nothing."""
        if path not in self._replies:
            self._replies[path] = self._ask(path)
        reply = self._replies[path]
        return reply.body.decode(errors="replace") if reply else ""

    def field(self, sign: Sign) -> Any:
        """The value at a dotted place of the route's JSON; None where it isn't."""
        try:
            value = json.loads(self.text(sign.path))
        except (ValueError, RecursionError):
            return None
        for step in sign.field.split("."):
            value = _inside(value, step)
        return value

    def _ask(self, path: str) -> Reply | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            return None
        endpoint = self._endpoint
        # A base URL with a path of its own keeps it: that is where its list of models is.
        url = f"{endpoint.base_url}/models" if path == MODELS_PATH else f"{endpoint.root_url}{path}"
        try:
            reply = fetch("GET", url, headers=endpoint.headers, timeout_s=min(self._timeout_s, left))
        except LabError:
            return None
        return reply if reply.status == 200 else None


def _by_signs(questions: _Questions, *, early: bool) -> Detected | None:
    for dialect in dialects():
        for sign in dialect.signs:
            if (sign.path == MODELS_PATH) == early and sign.fits(value := questions.field(sign)):
                said = f"{sign.path} has {sign.field}"
                return _found(questions, dialect, said if sign.exists else f"{said} = {value}")
    return None


def _by_metrics(questions: _Questions) -> Detected | None:
    for dialect in dialects():
        if dialect.metrics_path and dialect.prefix:
            for line in unquoted(questions.text(dialect.metrics_path)).split("\n"):
                if line.startswith(dialect.prefix):
                    words = f"{dialect.metrics_path} has names that begin with {dialect.prefix}"
                    return _found(questions, dialect, words)
    return None


def _found(questions: _Questions, dialect: Dialect, evidence: str) -> Detected:
    version = questions.field(dialect.version) if dialect.version else None
    words = version[:MAX_VERSION_CHARS] if isinstance(version, str) and version.isprintable() else None
    return Detected(dialect, words, evidence)


def _inside(value: Any, step: str) -> Any:
    if isinstance(value, list):
        return value[int(step)] if step.isdecimal() and int(step) < len(value) else None
    return value.get(step) if isinstance(value, dict) else None
