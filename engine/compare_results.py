"""What a comparison of Hugging Face and vLLM found: frozen values, and how they follow from the traces.

Both engines are measured as the same kind of traces and summed up by the same function. Medians are over
the repeats that were measured; a failure ends a comparison.
``…_bytes_per_token`` are computed, not measured: weights × forward passes / output tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from engine.config import PEER_ENGINES, CompareConfig
from engine.metrics import RequestTrace, Spread, median_and_spread, summarize

ENGINE_LABELS = {
    "hf": "Hugging Face",
    "llamacpp": "llama.cpp",
    "transformers": "transformers serve",
    "vllm": "vLLM",
    "vllm_eager": "vLLM (eager)",
}
APART_NOTE = "Both engines do not fit into memory together: the server was stopped while Hugging Face ran."
MODE_LABELS = {
    "sequential": "one after another",
    "static_batch": "one static batch",
    "concurrent": "all at once",
}


class CompareState(StrEnum):
    """Compare with ``==``: a reloaded module makes a second class."""

    IDLE = "idle"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class LaneState(StrEnum):
    """What one engine is doing in the race."""

    WAITING = "waiting"
    LOADING = "loading"
    WARMING = "warming"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Mode(StrEnum):
    """How several prompts are given to an engine."""

    SEQUENTIAL = "sequential"
    CONCURRENT = "concurrent"
    STATIC_BATCH = "static_batch"


@dataclass(frozen=True)
class Repeat:
    """One measured repeat. Times from the first send.

    ``steps`` are forward passes of the whole model, None where they are not known. ``cached_tokens`` of
    the ``prompt_tokens`` came from the prefix cache.
    """

    generate_s: float | None = None
    output_tokens: int | None = None
    throughput_tok_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    steps: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @classmethod
    def from_traces(cls, traces: Sequence[RequestTrace], steps: int | None = None) -> Self:
        """Sum up one repeat; raises the error of the first request that failed."""
        for trace in traces:
            if (failure := trace.failure()) is not None:
                raise failure
        summary = summarize(traces)
        return cls(
            generate_s=summary.wall_s,
            output_tokens=summary.output_tokens,
            throughput_tok_s=summary.throughput_tok_s,
            ttft_ms=summary.ttft_ms.p50 if summary.ttft_ms else None,
            tpot_ms=summary.tpot_ms.p50 if summary.tpot_ms else None,
            steps=steps,
            prompt_tokens=_sum(trace.prompt_tokens for trace in traces),
            cached_tokens=_sum(trace.cached_tokens for trace in traces),
        )


@dataclass(frozen=True)
class EngineResult:
    """One engine answering one request: medians over the repeats.

    ``load_s``: process start → ready to answer; None where somebody else started it. ``spread`` is the
    lowest and highest throughput. ``memory_bytes``: on a CPU what all processes of the engine occupy after the
    last repeat (PSS, for vLLM with its KV cache), on a GPU what torch had allocated at most (HF; None for vLLM).
    """

    load_s: float | None = None
    generate_s: float | None = None
    output_tokens: int | None = None
    throughput_tok_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    spread: tuple[float, float] | None = None
    memory_bytes: int | None = None
    weights_bytes_per_token: float | None = None
    repeats: tuple[Repeat, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"spread": list(self.spread) if self.spread else None, "repeats": _dicts(self.repeats)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from ``to_dict``; unknown names (a newer version's) are ignored."""
        known = _known(cls, values)
        return cls(**known | {"spread": _pair(values.get("spread")), "repeats": _repeats(values)})


@dataclass(frozen=True)
class Level:
    """``users`` prompts given to one engine in one way. Medians over the repeats.

    ``steps`` are forward passes for all prompts together; ``weights_bytes_per_token`` is computed.
    """

    users: int
    mode: Mode
    engine: str
    throughput_tok_s: float | None = None
    spread: tuple[float, float] | None = None
    generate_s: float | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    steps: int | None = None
    weights_bytes_per_token: float | None = None
    repeats: tuple[Repeat, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "mode": self.mode.value,
            "spread": list(self.spread) if self.spread else None,
            "repeats": _dicts(self.repeats),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        known = _known(cls, values)
        mode = {"mode": Mode(values["mode"])}
        return cls(**known | mode | {"spread": _pair(values.get("spread")), "repeats": _repeats(values)})


@dataclass(frozen=True)
class LevelRatio:
    """vLLM's throughput with ``users`` at once, as a multiple of Hugging Face's; None where one is missing."""

    users: int
    against_sequential: float | None
    against_static_batch: float | None


@dataclass(frozen=True)
class PeerRatio:
    """vLLM's throughput with ``users`` at once, as a multiple of another server's with the same; below 1 it loses."""

    users: int
    engine: str
    ratio: float


@dataclass(frozen=True)
class RacePieces:
    """What the race showed: (seconds since the request was sent, text) of the last measured single request."""

    engine: str
    pieces: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class CompareResults:
    """Everything measured so far; engines by name: hf, vllm, vllm_eager, llamacpp, transformers.

    ``notes`` are sentences a reader needs to judge the numbers (nonces, what was stopped, what is missing);
    ``warnings`` say why they may be wrong.
    ``context`` says what is known of both: model, weights, device, dtype, threads.
    """

    engines: Mapping[str, EngineResult]
    levels: tuple[Level, ...] = ()
    weights_bytes: int | None = None
    race: tuple[RacePieces, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    context: Mapping[str, Any] | None = None

    @property
    def ratio(self) -> float | None:
        """vLLM's throughput for one request as a multiple of Hugging Face's."""
        return self._headline_ratio("vllm")

    @property
    def ratio_eager(self) -> float | None:
        """The same for vLLM without compilation and CUDA graphs."""
        return self._headline_ratio("vllm_eager")

    @property
    def level_ratios(self) -> tuple[LevelRatio, ...]:
        """For every number of users that vLLM was measured with."""
        users = sorted({level.users for level in self.levels if level.engine == "vllm"})
        return tuple(LevelRatio(n, self._ratio(n, Mode.SEQUENTIAL), self._ratio(n, Mode.STATIC_BATCH)) for n in users)

    @property
    def peer_ratios(self) -> tuple[PeerRatio, ...]:
        """vLLM against every other server, for the numbers of users that both were measured with."""
        pairs = (
            (level, self.level(level.users, Mode.CONCURRENT, "vllm"))
            for level in self.levels
            if level.engine in PEER_ENGINES
        )
        found = (
            (level, _divide(ours.throughput_tok_s, level.throughput_tok_s)) for level, ours in pairs if ours is not None
        )
        return tuple(PeerRatio(level.users, level.engine, ratio) for level, ratio in found if ratio is not None)

    @property
    def empty(self) -> bool:
        return not self.engines and not self.levels

    def level(self, users: int, mode: Mode, engine: str) -> Level | None:
        same = (level for level in self.levels if (level.users, level.mode, level.engine) == (users, mode, engine))
        return next(same, None)

    def to_dict(self) -> dict[str, Any]:
        """JSON for the command line and the store. Sizes are bytes, times seconds or ms as named."""
        return {
            "engines": {name: engine.to_dict() for name, engine in self.engines.items()},
            "ratio": self.ratio,
            "ratio_eager": self.ratio_eager,
            "levels": _dicts(self.levels),
            "level_ratios": [asdict(ratio) for ratio in self.level_ratios],
            "peer_ratios": [asdict(ratio) for ratio in self.peer_ratios],
            "weights_bytes": self.weights_bytes,
            "race": [{"engine": race.engine, "pieces": [list(piece) for piece in race.pieces]} for race in self.race],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "context": dict(self.context or {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from a saved run; raises KeyError, TypeError or ValueError for something else."""
        return cls(
            engines={name: EngineResult.from_dict(engine) for name, engine in values["engines"].items()},
            levels=tuple(Level.from_dict(level) for level in values.get("levels", ())),
            weights_bytes=values.get("weights_bytes"),
            race=tuple(
                RacePieces(race["engine"], tuple((float(at_s), str(text)) for at_s, text in race["pieces"]))
                for race in values.get("race", ())
            ),
            notes=tuple(values.get("notes", ())),
            warnings=tuple(values.get("warnings", ())),
            context=values.get("context"),
        )

    def _headline_ratio(self, engine: str) -> float | None:
        ours, theirs = self.engines.get(engine), self.engines.get("hf")
        return _divide(ours.throughput_tok_s, theirs.throughput_tok_s) if ours and theirs else None

    def _ratio(self, users: int, mode: Mode) -> float | None:
        ours, theirs = self.level(users, Mode.CONCURRENT, "vllm"), self.level(users, mode, "hf")
        return _divide(ours.throughput_tok_s, theirs.throughput_tok_s) if ours and theirs else None


@dataclass(frozen=True)
class Lane:
    """One engine in the race, live: the text of its single request.

    ``text_pieces`` are (seconds since this lane's own start, text) of the newest repeat, at the end of the
    last measured one. ``elapsed_s`` counts from that start and stands still when the answer is complete;
    None before the first. ``detail`` says which repeat this is.
    """

    engine: str
    label: str
    state: LaneState = LaneState.WAITING
    text_pieces: tuple[tuple[float, str], ...] = ()
    elapsed_s: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class CompareSnapshot:
    """The comparison at one moment. ``progress`` is 0 to 1; ``results`` grow while it runs.

    ``left_s`` is the time it still takes, at least and at most, by earlier runs; None where nothing is known.
    """

    state: CompareState = CompareState.IDLE
    message: str = ""
    progress: float = 0.0
    config: CompareConfig | None = None
    lanes: tuple[Lane, ...] = ()
    results: CompareResults | None = None
    error: str | None = None
    remedy: str = ""
    run_id: str | None = None
    elapsed_s: float | None = None
    left_s: tuple[float, float] | None = None

    @property
    def running(self) -> bool:
        return self.state == CompareState.RUNNING

    def lane(self, engine: str) -> Lane | None:
        return next((lane for lane in self.lanes if lane.engine == engine), None)


def engine_result(
    repeats: Sequence[Repeat], *, load_s: float | None, memory_bytes: int | None, weights_bytes: int | None
) -> EngineResult:
    """Medians of one engine's single requests."""
    throughput = median_and_spread(repeat.throughput_tok_s for repeat in repeats)
    tokens, steps = _middle(repeat.output_tokens for repeat in repeats), _middle(repeat.steps for repeat in repeats)
    return EngineResult(
        load_s=load_s,
        generate_s=_median(repeat.generate_s for repeat in repeats),
        output_tokens=tokens,
        throughput_tok_s=throughput.median if throughput else None,
        ttft_ms=_median(repeat.ttft_ms for repeat in repeats),
        tpot_ms=_median(repeat.tpot_ms for repeat in repeats),
        spread=_low_high(throughput),
        memory_bytes=memory_bytes,
        weights_bytes_per_token=weights_bytes_per_token(weights_bytes, steps, tokens),
        repeats=tuple(repeats),
    )


def level_result(users: int, mode: Mode, engine: str, repeats: Sequence[Repeat], *, weights_bytes: int | None) -> Level:
    """Medians of one number of users with one engine."""
    one = engine_result(repeats, load_s=None, memory_bytes=None, weights_bytes=weights_bytes)
    return Level(
        users=users,
        mode=mode,
        engine=engine,
        throughput_tok_s=one.throughput_tok_s,
        spread=one.spread,
        generate_s=one.generate_s,
        output_tokens=one.output_tokens,
        ttft_ms=one.ttft_ms,
        steps=_middle(repeat.steps for repeat in repeats),
        weights_bytes_per_token=one.weights_bytes_per_token,
        repeats=one.repeats,
    )


def weights_bytes_per_token(weights_bytes: int | None, steps: int | None, output_tokens: int | None) -> float | None:
    """Bytes of weights read from memory per output token: every forward pass reads all of them once."""
    if weights_bytes is None or steps is None or not output_tokens:
        return None
    return weights_bytes * steps / output_tokens


def _sum(counts: Iterable[int | None]) -> int | None:
    """None if one is unknown: a part isn't the sum."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _median(values: Iterable[float | None]) -> float | None:
    spread = median_and_spread(values)
    return spread.median if spread else None


def _middle(values: Iterable[int | None]) -> int | None:
    median = _median(values)
    return None if median is None else round(median)


def _low_high(spread: Spread | None) -> tuple[float, float] | None:
    return (spread.low, spread.high) if spread else None


def _divide(upper: float | None, lower: float | None) -> float | None:
    return upper / lower if upper is not None and lower else None


def _pair(value: Sequence[float] | None) -> tuple[float, float] | None:
    return (float(value[0]), float(value[1])) if value else None


def _dicts(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [value.to_dict() if hasattr(value, "to_dict") else asdict(value) for value in values]


def _repeats(values: Mapping[str, Any]) -> tuple[Repeat, ...]:
    return tuple(Repeat(**_known(Repeat, repeat)) for repeat in values.get("repeats", ()))


def _known(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
