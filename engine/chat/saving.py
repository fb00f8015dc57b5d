"""A conversation as a saved run: written anew after every answer, however that one ended.

A run that is deleted while its conversation goes on stays deleted: the turns that follow make a run of
their own, numbered on, so that it shows that it isn't the beginning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from engine.chat.turn import ChatOptions, SaveState, Turn, TurnStatus
from engine.config import Endpoint, Settings
from engine.environment import Hardware, collect, detect_hardware
from engine.errors import LabError
from engine.metrics import RequestTrace, median_and_spread, percentile
from engine.server.state import ServerSnapshot
from engine.store import Run, RunStore, new_run, runs_to_csv
from engine.telemetry.host import CoreWatch, OtherWork

logger = logging.getLogger(__name__)
KIND = "chat"


@dataclass(frozen=True)
class Served:
    """What answers: its address (without a key) and model; of a server of ours also weights, settings and command."""

    base_url: str
    model: str
    max_model_len: int | None = None
    source: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    command: str = ""


@dataclass(frozen=True)
class Asked:
    """A question on its way."""

    text: str
    options: ChatOptions
    served: Served
    sent_at: str
    watch: CoreWatch

    def others(self) -> OtherWork | None:
        """What else has used the server's cores since then. A note beside an answer must not cost the answer."""
        try:
            return self.watch.read()
        except Exception:
            logger.exception("What else used the cores couldn't be read")
            return None


@dataclass(frozen=True)
class Exchange:
    """A question and how its answer ended; ``number`` counts from 1 within the conversation."""

    number: int
    asked: Asked
    answer: Turn

    @property
    def done(self) -> bool:
        return self.answer.status == TurnStatus.DONE

    def to_dict(self) -> dict[str, Any]:
        """Flat, with units in the names; what isn't known is None."""
        asked, answer = self.asked, self.answer
        return {
            "number": self.number,
            "sent_at": asked.sent_at,
            "user": asked.text,
            "assistant": answer.text,
            "reasoning": answer.reasoning,
            "status": str(answer.status),
            "error": answer.error,
            **_numbers(answer.trace),
            "other_busy_cores": answer.others.busy_cores if answer.others else None,
            "cores": answer.others.cores if answer.others else None,
            "options": asdict(asked.options),
            "model": asked.served.model,
            "weights": (asked.served.source or {}).get("detail"),
            "base_url": asked.served.base_url,
        }


class ChatArchive:
    """Where conversations are saved, and what is known of the machine and the server that answers them."""

    def __init__(self, settings: Settings, store: RunStore, server: Callable[[], ServerSnapshot]) -> None:
        self.store = store
        self._settings, self._server = settings, server

    def asked(self, endpoint: Endpoint, text: str, options: ChatOptions) -> Asked:
        """To be called just before a question is sent."""
        now, current = datetime.now(UTC).isoformat(timespec="milliseconds"), self._server()
        ours = current.endpoint == endpoint
        served = Served(
            endpoint.base_url,
            endpoint.model,
            endpoint.max_model_len,
            current.source.to_dict() if ours and current.source else None,
            current.config.to_dict() if ours and current.config else None,
            current.command if ours else "",
        )
        return Asked(text, options, served, now, CoreWatch(self._hardware, current.pid if ours else None))

    def environment(self) -> dict[str, Any]:
        return collect(self._settings).to_dict() | {"engine": self._server().engine_name}

    @cached_property
    def _hardware(self) -> Hardware:
        return detect_hardware(self._settings)


class ChatRun:
    """The run that one conversation is saved as. ``take`` and ``save`` may be called from any thread."""

    def __init__(self, archive: ChatArchive) -> None:
        self._archive = archive
        self._writing = threading.Lock()
        self._exchanges: list[Exchange] = []
        self._looked_at = 0
        self._deleted = 0
        self._written: tuple[Run, int] | None = None
        self._error: LabError | None = None

    def state(self) -> SaveState:
        run_id = self._written[0].id if self._written else None
        return SaveState(run_id, self._looked_at < len(self._exchanges), self._error)

    def take(self, asked: Asked, answer: Turn) -> None:
        """Add a finished turn; it is written by the next ``save``. Turns come one at a time."""
        self._exchanges.append(Exchange(len(self._exchanges) + 1, asked, answer))

    def save(self) -> None:
        """Write what was taken so far; what can't be written ``state`` tells, and the next turn tries again."""
        with self._writing:
            exchanges = self._exchanges[:]
            try:
                self._write(exchanges)
                self._error = None
            except LabError as error:
                self._error = error
            except Exception as error:
                logger.exception("A conversation couldn't be saved")
                self._error = LabError(f"{type(error).__name__}: {error}", "This is a lab fault; its log says more.")
            self._looked_at = len(exchanges)

    def _write(self, exchanges: Sequence[Exchange]) -> None:
        if self._written is not None and self._archive.store.get(self._written[0].id) is None:
            self._deleted, self._written = self._written[1], None
        begun = self._written[0] if self._written else new_run(KIND, "", environment=self._archive.environment())
        run = as_run(begun, exchanges[self._deleted :])
        self._archive.store.add(run)
        self._written = (run, len(exchanges))


def turns_to_csv(run: Run) -> str:
    """One line a turn; one line in all where the run holds no turns."""
    turns = run.results.get("turns") if isinstance(run.results, dict) else None
    rows = [turn for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return runs_to_csv([replace(run, results=row) for row in rows] or [run])


def as_run(begun: Run, exchanges: Sequence[Exchange]) -> Run:
    """``begun`` with these turns, at least one. Of several servers it has the last one's settings and all commands."""
    last = exchanges[-1].asked
    ttft_ms, tpot_ms = _median_ms(exchanges, "ttft_ms"), _median_ms(exchanges, "tpot_ms")
    endpoint = {name: getattr(last.served, name) for name in ("base_url", "model", "max_model_len")}
    commands = dict.fromkeys(exchange.asked.served.command for exchange in exchanges)
    return replace(
        begun,
        title=_title(exchanges, ttft_ms),
        status=str(exchanges[-1].answer.status),
        created_at=exchanges[0].asked.sent_at,
        duration_s=sum(exchange.answer.elapsed_s or 0.0 for exchange in exchanges),
        config={"options": asdict(last.options), "endpoint": endpoint, "server": last.served.config},
        model=last.served.source or {"model_id": last.served.model},
        command="\n".join(command for command in commands if command),
        results={
            "answers": len(exchanges),
            "answers_finished": sum(exchange.done for exchange in exchanges),
            "ttft_median_ms": ttft_ms,
            "tpot_median_ms": tpot_ms,
            "turns": [exchange.to_dict() for exchange in exchanges],
        },
    )


def _title(exchanges: Sequence[Exchange], ttft_ms: float | None) -> str:
    count, done = len(exchanges), sum(exchange.done for exchange in exchanges)
    answers = f"{count} answer{'s' if count > 1 else ''}"
    if done < count:
        answers = f"{done} of {answers}"
    return f"Chat: {answers}" + (f", TTFT {_milliseconds(ttft_ms)}" if ttft_ms is not None else "")


def _milliseconds(value_ms: float) -> str:
    return f"{value_ms:.0f} ms" if value_ms < 1000 else f"{value_ms / 1000:.1f} s"


def _median_ms(exchanges: Iterable[Exchange], name: str) -> float | None:
    """Over finished answers only: the others are counted, and in no number."""
    spread = median_and_spread(
        getattr(exchange.answer.trace, name) for exchange in exchanges if exchange.done and exchange.answer.trace
    )
    return spread.median if spread else None


def _numbers(trace: RequestTrace | None) -> dict[str, Any]:
    """What was timed here, and what the server says of the same request."""
    trace = trace or RequestTrace(0.0)
    gaps_ms, server = trace.itl_ms, trace.server
    return {
        "finish_reason": trace.finish_reason,
        "ttft_ms": trace.ttft_ms,
        "tpot_ms": trace.tpot_ms,
        "e2e_ms": trace.e2e_ms,
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "cached_tokens": trace.cached_tokens,
        "decode_speed_tok_s": trace.decode_speed_tok_s,
        "itl_p50_ms": percentile(gaps_ms, 50),
        "itl_p95_ms": percentile(gaps_ms, 95),
        "itl_max_ms": max(gaps_ms, default=None),
        "server_ttft_ms": server.ttft_ms if server else None,
        "server_queue_ms": server.queue_ms if server else None,
        "server_mean_itl_ms": server.mean_itl_ms if server else None,
    }
