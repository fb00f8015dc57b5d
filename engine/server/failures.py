"""The rules of ``failures.yaml``: which words in a log mean what, and which setting helps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import ServerConfig
from engine.errors import ConfigError
from engine.server.state import Fix

RULES_FILE = Path(__file__).with_name("failures.yaml")
UNKNOWN = "—"
# What is left free of a GPU beside the share: the driver's and the display's own memory come and go.
SHARE_MARGIN = 0.02
SHARE_STEP = 0.1
HIGHEST_SHARE = 0.95


class Scope(StrEnum):
    """When a rule applies: to a server's end, to one request, or to both."""

    SERVER = "server"
    REQUEST = "request"
    ANY = "any"


@dataclass(frozen=True)
class FixRule:
    """How to change a ServerConfig: plain ``changes``, or one field ``halve``d, ``lower``ed, raised or fitted.

    ``fit_share`` sets gpu_memory_utilization from the groups ``free`` and ``total`` of the log line.
    ``retry`` marks a change that helps even where it changes nothing, because a new start alone does.
    """

    label: str
    changes: Mapping[str, object]
    halve: str | None = None
    lower: str | None = None
    increase: str | None = None
    fit_share: bool = False
    retry: bool = False

    def build(self, config: ServerConfig, groups: Mapping[str, str]) -> Fix | None:
        """The change for this configuration; None where it needs a number that the log lacks or leads nowhere."""
        try:
            changes = self._changes(config, groups)
            changed = replace(config, **changes)
        except (ConfigError, KeyError, ValueError, ZeroDivisionError):
            return None
        if changed == config and not self.retry:
            return None
        return Fix(fill(self.label, {**groups, **changed.to_dict()}), changes)

    def _changes(self, config: ServerConfig, groups: Mapping[str, str]) -> dict[str, Any]:
        changes = {name: _filled(value, groups) for name, value in self.changes.items()}
        for field, change in ((self.halve, _half), (self.lower, _lower), (self.increase, _raised)):
            if field is not None:
                changes[field] = change(getattr(config, field))
        if self.fit_share:
            changes["gpu_memory_utilization"] = _fitting_share(float(groups["free"]), float(groups["total"]))
        return changes


@dataclass(frozen=True)
class Rule:
    """One known failure. A line matches when it holds any of ``match``, or a ``pattern`` where there is no ``match``.

    The named groups of ``patterns`` and the fields of ServerConfig can be used in cause, remedy and fix.
    A ``generic`` rule names a wrapper or a bare end: anything more exact is shown instead.
    """

    name: str
    cause: str
    remedy: str
    match: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    exit_codes: tuple[int, ...]
    fixes: tuple[FixRule, ...]
    scope: Scope
    generic: bool

    def matches(self, text: str) -> bool:
        if self.match:
            return any(words in text for words in self.match)
        return any(pattern.search(text) for pattern in self.patterns)

    def groups(self, text: str) -> dict[str, str]:
        """The numbers and names that the line gives; empty where its wording is another."""
        found = (pattern.search(text) for pattern in self.patterns)
        return {name: value for match in found if match for name, value in match.groupdict().items() if value}

    def fix(self, config: ServerConfig, groups: Mapping[str, str]) -> Fix | None:
        """The first change that leads somewhere."""
        return next((fix for rule in self.fixes if (fix := rule.build(config, groups))), None)


@cache
def load_rules(path: Path = RULES_FILE) -> tuple[Rule, ...]:
    """All rules in the order of the file; raises ValueError for one that makes no sense."""
    return tuple(_rule(entry) for entry in yaml.safe_load(path.read_text("utf-8")))


def fill(text: str, values: Mapping[str, object]) -> str:
    """Put the values into the ``{names}`` of a text; an unknown one shows as “—”."""
    return text.format_map(_Words({name: value for name, value in values.items() if value is not None}))


class _Words(dict[str, object]):
    def __missing__(self, name: str) -> str:
        return UNKNOWN


def _rule(entry: Mapping[str, Any]) -> Rule:
    known = {"name", "match", "pattern", "exit_codes", "cause", "remedy", "fix", "scope", "generic"}
    if unknown := set(entry) - known:
        raise ValueError(f"Rule {entry.get('name')}: unknown {', '.join(sorted(unknown))}.")
    if not any(entry.get(key) for key in ("match", "pattern", "exit_codes")):
        raise ValueError(f"Rule {entry['name']} matches nothing.")
    return Rule(
        name=entry["name"],
        cause=" ".join(entry["cause"].split()),
        remedy=" ".join(entry["remedy"].split()),
        match=tuple(entry.get("match", ())),
        patterns=tuple(re.compile(pattern) for pattern in _listed(entry.get("pattern"))),
        exit_codes=tuple(entry.get("exit_codes", ())),
        fixes=tuple(FixRule(**{"changes": {}, **fix}) for fix in _listed(entry.get("fix"))),
        scope=Scope(entry.get("scope", Scope.SERVER)),
        generic=entry.get("generic", False),
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _filled(value: object, groups: Mapping[str, str]) -> object:
    """``"{tokens}"`` becomes the number in the log; any other value stays as it is."""
    if not isinstance(value, str) or not value.startswith("{"):
        return value
    text = groups[value.strip("{}")]
    return int(float(text)) if text.replace(".", "", 1).isdigit() else text


def _half(value: int) -> int:
    return max(1, value // 2)


def _lower(share: float) -> float:
    return round(share - SHARE_STEP, 2)


def _raised(share: float) -> float:
    return max(share, HIGHEST_SHARE)


def _fitting_share(free: float, total: float) -> float:
    # Rounded first: 0.6 - 0.02 is a little less than 0.58 in binary.
    return math.floor(round((free / total - SHARE_MARGIN) * 100, 6)) / 100
