"""Named configurations: the workshop's, and those that people keep, take along and bring in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import yaml

from engine.config import LoadTestConfig, ServerConfig
from engine.errors import ConfigError
from engine.store import RunStore, to_json
from engine.tuning.knobs import Value

KIND = "profile"
MOST_NAME = 60
MOST_BYTES = 1_000_000
MOST_PROFILES = 200
# Where this machine serves is nobody else's business.
NOT_SHARED = ("port",)


@dataclass(frozen=True)
class Profile:
    """``preset``: it came with the lab, and can't be replaced or deleted. ``note`` is one sentence."""

    name: str
    config: ServerConfig
    note: str = ""
    preset: bool = False


@dataclass(frozen=True)
class Preset:
    """One of the workshop's experiments, as changes of a base."""

    name: str
    changes: Mapping[str, Value]
    note: str


WORKSHOP = (
    Preset("Balanced", {"max_model_len": 2048, "max_num_seqs": 32}, "What the lab starts with."),
    Preset(
        "Short context",
        {"max_model_len": 64, "max_num_seqs": 8},
        "Little KV cache for each request, so that many would fit; only eight may run.",
    ),
    Preset("One at a time", {"max_model_len": 2048, "max_num_seqs": 1}, "No batching: everybody else waits."),
    Preset("Many at once", {"max_model_len": 2048, "max_num_seqs": 128}, "Nobody waits; a step is shared by all."),
    Preset("Long context", {"max_model_len": 8192, "max_num_seqs": 8}, "Long chats, for fewer requests at once."),
    Preset(
        "No prefix cache",
        {"max_model_len": 2048, "max_num_seqs": 32, "enable_prefix_caching": False},
        "Equal prompt beginnings are computed again each time.",
    ),
)
# It fits into the shortest context of the set.
WORKSHOP_LOAD = LoadTestConfig(users=(20,), duration_s=10.0, prompt_tokens=24, max_tokens=32)


class Profiles:
    """The presets and the saved ones; methods raise StoreError, DiskFull or ConfigError."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def list(self) -> tuple[Profile, ...]:
        """Presets first, then by name; what is damaged is left out."""
        saved = (_profile(name, body) for name, body in self._store.documents(KIND).items())
        return (*presets(), *(profile for profile in saved if profile is not None))

    def save(self, name: str, config: ServerConfig, note: str = "") -> Profile:
        """Keep it, in place of one with this name."""
        profile = Profile(_checked_name(name), config, note.strip())
        self._store.put_document(KIND, profile.name, _body(profile))
        return profile

    def add(self, profiles: Iterable[Profile]) -> tuple[Profile, ...]:
        """Save imported ones; a preset is not replaced, and not added either."""
        names = {preset.name for preset in presets()}
        return tuple(self.save(one.name, one.config, one.note) for one in profiles if one.name not in names)

    def delete(self, name: str) -> bool:
        """True when there was one."""
        return self._store.delete_document(KIND, name)


def presets() -> tuple[Profile, ...]:
    return tuple(Profile(one.name, ServerConfig(**dict(one.changes)), one.note, preset=True) for one in WORKSHOP)  # type: ignore[arg-type]


def export(profiles: Iterable[Profile], kind: Literal["json", "yaml"]) -> str:
    """A file to take along; ``parse`` reads it."""
    document = {"profiles": {one.name: _body(one) for one in profiles}}
    if kind == "json":
        return to_json(document)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def parse(text: str) -> tuple[Profile, ...]:
    """Profiles of an exported file, JSON or YAML. Raises ConfigError, which names the profile that is wrong."""
    if len(text.encode(errors="replace")) > MOST_BYTES:
        raise ConfigError("The file is too large for profiles.", "Choose one that was exported here.")
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError("The file is neither JSON nor YAML.", "Choose one that was exported here.") from error
    bodies = document.get("profiles") if isinstance(document, Mapping) else None
    if not isinstance(bodies, Mapping) or not bodies:
        raise ConfigError("There are no profiles in the file.", "Choose one that was exported here.")
    if len(bodies) > MOST_PROFILES:
        raise ConfigError(f"The file has {len(bodies):,} profiles.", f"Use at most {MOST_PROFILES}.")
    return tuple(_imported(name, body) for name, body in bodies.items())


def _imported(name: Any, body: Any) -> Profile:
    label = _checked_name(str(name))
    settings = body.get("settings") if isinstance(body, Mapping) else None
    if not isinstance(settings, Mapping):
        raise ConfigError(f"Profile {label!r} has no settings.", "Choose a file that was exported here.")
    known = {one.name: one for one in fields(ServerConfig) if one.name not in NOT_SHARED}
    if unknown := sorted(str(key) for key in settings if key not in known):
        raise ConfigError(f"Profile {label!r} has a setting {unknown[0]!r}.", "This lab does not know it: take it out.")
    for key, value in settings.items():
        if not _is_kind(value, str(known[key].type)):
            raise ConfigError(f"Profile {label!r} has {key} = {value!r}.", "Correct it in the file.")
    try:
        config = ServerConfig.from_dict(settings)
    except ConfigError as error:
        raise ConfigError(f"Profile {label!r}: {error.cause}", error.remedy) from error
    note = body.get("note")
    return Profile(label, config, note.strip() if isinstance(note, str) else "")


def _is_kind(value: Any, annotation: str) -> bool:
    """Whether a value fits a field like ``int | None``: a file may say "yes" where a switch is wanted."""
    if value is None:
        return "None" in annotation
    kinds: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    wanted = kinds[annotation.removesuffix(" | None")]
    return isinstance(value, wanted) and (annotation.startswith("bool") or not isinstance(value, bool))


def _checked_name(name: str) -> str:
    clean = " ".join(name.split())
    if not clean or len(clean) > MOST_NAME or not clean.isprintable():
        raise ConfigError(f"{clean[:MOST_NAME]!r} can't be a name.", f"Use 1 to {MOST_NAME} letters.")
    if clean in {preset.name for preset in WORKSHOP}:
        raise ConfigError(f"{clean!r} is one of the lab's own.", "Choose another name.")
    return clean


def _body(profile: Profile) -> dict[str, Any]:
    settings = {name: value for name, value in profile.config.to_dict().items() if name not in NOT_SHARED}
    return {"settings": settings, "note": profile.note}


def _profile(name: str, body: Any) -> Profile | None:
    try:
        return _imported(name, body)
    except ConfigError:
        return None
