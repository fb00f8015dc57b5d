"""Hugging Face against vLLM: same weights, dtype, threads, prompt ids and output length.

The two never compute at the same time: Hugging Face is measured first in its own process, that
process ends, then vLLM is measured. Every shape is warmed up once and that is thrown away.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from engine.baseline import HfBaseline, Loaded
from engine.client import CompletionRequest, run_concurrently
from engine.compare_board import Board
from engine.compare_estimate import Estimate, estimate
from engine.compare_peers import PeerPart, require_installed
from engine.compare_plan import (
    Plan,
    Prompt,
    hf_modes,
    messages_of,
    plan_by_ids,
    plan_by_server,
    repeats_in_all,
)
from engine.compare_results import (
    APART_NOTE,
    ENGINE_LABELS,
    CompareResults,
    CompareSnapshot,
    CompareState,
    LaneState,
    Mode,
    Repeat,
)
from engine.compare_server import MeasuredServer
from engine.config import CompareConfig, Device, Endpoint, ServerConfig, Settings
from engine.environment import Hardware, collect, detect_hardware
from engine.errors import AlreadyRunning, LabError
from engine.exclusive import WAIT_OR_CANCEL, Exclusive, told
from engine.models import ModelSource, prepare
from engine.server.command import resolved_dtype, uses_eager
from engine.server.supervisor import Supervisor
from engine.store import RunStore, new_run
from engine.telemetry.host import CoreWatch
from engine.telemetry.prometheus import scrape

RUNS_LOOKED_AT = 20
RESERVED = "A comparison is being measured."
ATTACHED_NOTE = "The server is not the lab's own: its weights, dtype, threads and mode are not known here."
FORKED_NOTE = "vLLM was forked from a process that had imported it already: its load time is without the imports."
LOCAL_WEIGHTS_NOTE = "Hugging Face ran the weights that are on this machine under the served model's name."


class _Cancelled(Exception):
    pass


@dataclass
class _Subject:
    """What is measured; a run is saved with this, not with what the lab happens to hold at the end."""

    source: ModelSource | None = None
    server: ServerConfig | None = None
    engine: str | None = None
    commands: dict[str, str] = field(default_factory=dict)


class CompareRunner:
    """One comparison at a time, on its own thread; the result is saved as a run."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        store: RunStore,
        answering: Callable[[], str] = lambda: "",
    ) -> None:
        self._settings, self._supervisor, self._store = settings, supervisor, store
        self._server = MeasuredServer(settings, supervisor, self._say, self._check_cancel)
        self._work = Exclusive("compare", supervisor.taken_by, answering)
        self._board = Board()
        self._subject = _Subject()
        self._cancel = self._work.cancelled
        self._baseline: HfBaseline | None = None

    def snapshot(self) -> CompareSnapshot:
        return self._board.snapshot()

    def require_idle(self) -> None:
        """Raises AlreadyRunning while something is measured."""
        if self._board.snapshot().running:
            raise AlreadyRunning(RESERVED, WAIT_OR_CANCEL)

    def estimate(self, config: CompareConfig, server: ServerConfig | None = None) -> Estimate | None:
        """How long ``start`` with the same would take, from the saved runs; None where they don't tell."""
        now = self._supervisor.snapshot()
        if now.attached and not now.adopted:
            return None
        model = now.endpoint.model if now.endpoint else (server or now.config or ServerConfig()).model
        try:
            runs = self._store.list("compare", limit=RUNS_LOOKED_AT)
        except LabError:  # an estimate is a comfort, not a condition
            return None
        machine = collect(self._settings).summary()
        return estimate(runs, config, machine=machine, model=model, server_ready=now.ready)

    def start(self, config: CompareConfig, server: ServerConfig | None = None) -> None:
        """Begin and return; raises AlreadyRunning. ``server`` is what to start where none runs."""
        require_installed(config)
        expected = self.estimate(config, server)

        def announce() -> Callable[[], None]:
            before = self._board, self._subject
            self._board, self._subject = Board(config, repeats_in_all(config), expected), _Subject()
            return lambda: self._take_back(*before)

        self._work.start(self.require_idle, announce, lambda: self._run(config, server))

    def cancel(self) -> None:
        """End it soon; what was measured is kept and marked."""
        self._cancel.set()
        baseline = self._baseline
        if baseline is not None:
            baseline.kill()

    def close(self) -> None:
        """Cancel and wait, so that nothing of it is left."""
        self.cancel()
        self._work.wait()

    def run_blocking(
        self, config: CompareConfig, server: ServerConfig | None, progress: Callable[[str], None]
    ) -> CompareResults:
        """For the command line: raises LabError unless it was measured wholly."""
        self.start(config, server)
        self._work.follow(lambda: self.snapshot().message, progress)
        ended = self.snapshot()
        if ended.state != CompareState.DONE or ended.results is None or ended.error:
            raise LabError(ended.error or "The comparison was cancelled.", ended.remedy)
        return ended.results

    # -- on the runner's thread

    def _take_back(self, board: Board, subject: _Subject) -> None:
        self._board, self._subject = board, subject

    def _run(self, config: CompareConfig, server: ServerConfig | None) -> None:
        state = CompareState.DONE
        error: str | None = None
        remedy = ""
        try:
            with self._supervisor.reserved(RESERVED):
                self._measure(config, server)
        except _Cancelled:
            state = CompareState.CANCELLED
        except Exception as problem:  # a fault of ours must not leave the page at "running" for ever
            state, (error, remedy) = CompareState.FAILED, told(problem)
            if self._cancel.is_set() and isinstance(problem, LabError):
                state, error, remedy = CompareState.CANCELLED, None, ""
        run_id = None
        try:
            run_id = self._save(config, state, error)
        except Exception as problem:
            error, remedy = (error, remedy) if error else told(problem)
        self._board.finish(state, error=error, remedy=remedy, run_id=run_id)

    def _measure(self, config: CompareConfig, server: ServerConfig | None) -> None:
        if "vllm" not in config.engines:
            self._measure_without_vllm(config, server)
            return
        with self._server.ready(server):
            current = self._supervisor.snapshot()
            served = current.config or ServerConfig()
            self._subject.server, self._subject.engine = current.config, current.engine_name
            beside = set(config.engines) != {"vllm"}
            self._subject.source = self._server.weights() if beside else current.source
            self._describe(current.endpoint)
            self._say("Preparing the prompts")
            plan = plan_by_server(config, self._supervisor.endpoint(), self._check_cancel)
            if self._subject.source is not None and beside:
                with self._room_for(self._subject.source, served):
                    plan = self._measure_others(config, self._subject.source, served, plan)
            assert plan is not None
            if config.eager_against_graphs and not current.attached:
                self._measure_both_modes(config, served, plan)
            else:
                self._measure_vllm(config, "vllm", plan)

    @contextmanager
    def _room_for(self, source: ModelSource, served: ServerConfig) -> Iterator[None]:
        """Where memory is too small for both engines at once, the server is away meanwhile."""
        if self._server.has_room_beside(source):
            yield
            return
        self._board.note(APART_NOTE)
        with self._server.away(served):
            yield

    def _measure_others(
        self, config: CompareConfig, source: ModelSource, served: ServerConfig, plan: Plan | None
    ) -> Plan | None:
        """Hugging Face and the other engines, one after the other."""
        hardware = detect_hardware(self._settings)
        part = PeerPart(self._settings, self._board, self._cancel, self._say, self._check_cancel, self._watched)
        part.announce(config, source, hardware)  # one that can't run is told before the others take their time
        if "hf" in config.engines:
            plan = self._measure_hf(config, source, served, plan)
        self._subject.commands |= part.measure(config, source, hardware, plan)
        return plan

    def _measure_without_vllm(self, config: CompareConfig, server: ServerConfig | None) -> None:
        served = server or self._supervisor.snapshot().config or ServerConfig()
        self._subject.source = prepare(served.model, self._settings, self._say, self._check_cancel)
        self._describe(None)
        self._measure_others(config, self._subject.source, served, None)

    def _describe(self, endpoint: Endpoint | None) -> None:
        """What is known of what is measured; Hugging Face adds what it really loaded."""
        source, server = self._subject.source, self._subject.server
        hardware = detect_hardware(self._settings)
        context: dict[str, Any] = {"model": source.model_id if source else endpoint and endpoint.model}
        if endpoint is not None and server is None:
            self._board.note(ATTACHED_NOTE)
            if source is not None:
                self._board.note(LOCAL_WEIGHTS_NOTE)
        if source is not None:
            context |= {"weights": source.detail, "device": str(hardware.device)}
        if server is not None:
            context |= {"vllm_eager": uses_eager(server, hardware)}
        self._board.change_results(weights_bytes=source.weights_bytes if source else None, context=context)

    # -- Hugging Face

    def _measure_hf(self, config: CompareConfig, source: ModelSource, served: ServerConfig, plan: Plan | None) -> Plan:
        """Measure every shape; returns the plan, which it makes itself where the server could not."""
        self._say("Loading Hugging Face")
        self._board.lane("hf", state=LaneState.LOADING)
        hardware = detect_hardware(self._settings)
        dtype = resolved_dtype(served, hardware, source)
        with HfBaseline(source.path, hardware, self._settings.logs_dir, dtype) as baseline:
            self._baseline = baseline
            try:
                self._check_cancel()
                loaded = baseline.load()
                self._note_loaded(loaded)
                plan = plan or plan_by_ids(
                    config,
                    lambda text: baseline.tokenize(messages_of(text)),
                    loaded.max_length,
                    self._check_cancel,
                )
                with self._watched("hf", hardware, baseline.pid):
                    for users, groups in plan.items():
                        for mode in hf_modes(users, config):
                            self._measure_hf_mode(config, hardware, baseline, loaded, users, mode, groups)
            finally:
                self._baseline = None
        self._board.lane("hf", state=LaneState.DONE)
        return plan

    def _note_loaded(self, loaded: Loaded) -> None:
        facts = {"dtype": loaded.dtype, "threads": loaded.threads, "hf_attention": loaded.attention}
        context = dict(self._board.results.context or {}) | facts
        weights = loaded.weights_bytes or self._board.results.weights_bytes
        self._board.change_results(weights_bytes=weights, context=context)

    def _measure_hf_mode(
        self,
        config: CompareConfig,
        hardware: Hardware,
        baseline: HfBaseline,
        loaded: Loaded,
        users: int,
        mode: Mode,
        groups: list[list[Prompt]],
    ) -> None:
        def on_text(_: int, text: str, at_s: float) -> None:
            if users == 1:
                self._board.piece("hf", text, at_s)

        repeats: list[Repeat] = []
        memory: int | None = None
        try:
            for number, prompts in enumerate(groups):
                self._check_cancel()
                self._board.begin_repeat("hf", mode, users, number)
                ids = [prompt for prompt in prompts if isinstance(prompt, list)]
                batch = mode == Mode.STATIC_BATCH
                done = baseline.generate(ids, config.max_tokens, batch=batch, on_text=on_text)
                memory = done.memory_bytes if hardware.device == Device.CPU else done.peak_memory_bytes
                if number:
                    repeats.append(Repeat.from_traces(done.traces, steps=done.steps))
        finally:
            self._board.add("hf", users, mode, repeats, load_s=loaded.load_s, memory_bytes=memory)

    # -- vLLM

    def _measure_both_modes(self, config: CompareConfig, served: ServerConfig, plan: Plan) -> None:
        hardware = detect_hardware(self._settings)
        try:
            for engine, eager in (("vllm_eager", True), ("vllm", False)):
                self._say(f"Restarting the server: {ENGINE_LABELS[engine]}")
                self._server.restart(replace(served, enforce_eager=eager))
                self._measure_vllm(config, engine, plan)
        finally:
            now = self._supervisor.snapshot().config
            if now is None or uses_eager(now, hardware) != uses_eager(served, hardware):
                self._supervisor.restart(served)

    def _measure_vllm(self, config: CompareConfig, engine: str, plan: Plan) -> None:
        endpoint, current = self._supervisor.endpoint(), self._supervisor.snapshot()
        self._subject.commands[engine] = current.command
        if current.forked:
            self._board.note(FORKED_NOTE)
        everything: list[Repeat] = []
        with self._watched(engine, detect_hardware(self._settings), current.pid):
            for users, groups in plan.items():
                everything += self._measure_vllm_users(config, endpoint, engine, users, groups, current.load_s)
        asked = sum(repeat.prompt_tokens or 0 for repeat in everything)
        if asked and all(repeat.cached_tokens is not None for repeat in everything):
            cached = sum(repeat.cached_tokens or 0 for repeat in everything)
            self._board.note(
                f"{ENGINE_LABELS[engine]} found {cached:,} of {asked:,} prompt tokens in its prefix cache."
            )
        self._board.lane(engine, state=LaneState.DONE)

    def _measure_vllm_users(
        self,
        config: CompareConfig,
        endpoint: Endpoint,
        engine: str,
        users: int,
        groups: list[list[Prompt]],
        load_s: float | None,
    ) -> list[Repeat]:
        repeats: list[Repeat] = []
        try:
            for number, prompts in enumerate(groups):
                self._check_cancel()
                self._board.begin_repeat(engine, Mode.CONCURRENT, users, number)
                repeat = self._vllm_repeat(endpoint, engine, prompts, config.max_tokens)
                if number:
                    repeats.append(repeat)
        finally:
            memory = self._server.memory_bytes() if repeats else None
            self._board.add(engine, users, Mode.CONCURRENT, repeats, load_s=load_s, memory_bytes=memory)
        return repeats

    def _vllm_repeat(self, endpoint: Endpoint, engine: str, prompts: list[Prompt], new_tokens: int) -> Repeat:
        requests = [CompletionRequest(prompt=prompt, max_tokens=new_tokens, ignore_eos=True) for prompt in prompts]
        before, began_s = _iterations(endpoint), time.perf_counter()

        def on_text(_: int, text: str, now_s: float) -> None:
            if len(prompts) == 1:
                self._board.piece(engine, text, now_s - began_s)

        traces = run_concurrently(endpoint, requests, on_text, self._cancel)
        self._check_cancel()
        after = _iterations(endpoint)
        steps = after - before if before is not None and after is not None else None
        try:
            return Repeat.from_traces(traces, steps=steps)
        except LabError as error:
            raise self._server.cause_of(error) from error

    @contextmanager
    def _watched(self, engine: str, hardware: Hardware, pid: int | None) -> Iterator[None]:
        """Warn when something else kept the cores busy meanwhile; only where the cores are what computes."""
        watch = CoreWatch(hardware, pid)
        yield
        others = watch.read()
        if others is not None and others.disturbs:
            self._board.warn(
                f"While {ENGINE_LABELS[engine]} was measured, {others}: its numbers are lower than they could be."
            )

    # -- small things

    def _say(self, message: str) -> None:
        self._check_cancel()
        self._board.publish(message=message)

    def _check_cancel(self) -> None:
        if self._cancel.is_set():
            raise _Cancelled

    def _save(self, config: CompareConfig, state: CompareState, error: str | None) -> str | None:
        results, subject = self._board.results, self._subject
        if results.empty:
            return None
        title = " vs ".join("HF" if engine == "hf" else ENGINE_LABELS[engine] for engine in config.engines)
        if results.ratio is not None:
            title += f": {results.ratio:.1f}×"
        run = new_run(
            "compare",
            title,
            state.value,
            duration_s=time.monotonic() - self._board.began_s,
            config=config.to_dict() | {"server": subject.server.to_dict() if subject.server else None},
            environment=collect(self._settings).to_dict() | {"engine": subject.engine},
            model=subject.source.to_dict() if subject.source else {"model_id": (results.context or {}).get("model")},
            command="\n".join(command for command in subject.commands.values() if command),
            results=results.to_dict() | ({"error": error} if error else {}),
        )
        self._store.add(run)
        return run.id


def _iterations(endpoint: Endpoint) -> int | None:
    with contextlib.suppress(LabError):
        return scrape(endpoint).iterations
    return None
