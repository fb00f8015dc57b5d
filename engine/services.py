"""The lab's long-lived objects, opened together and closed together. One set owns a data folder."""

from __future__ import annotations

from dataclasses import dataclass

from engine.chat import ChatArchive, ChatRegistry
from engine.compare import CompareRunner
from engine.config import Settings
from engine.environment import Environment, collect
from engine.errors import AlreadyRunning, DataFolderInUse
from engine.fleet import Fleet
from engine.kv.live.follow import LiveBlocks
from engine.kv.live.watch import BlockWatch
from engine.load.runner import LoadTestRunner
from engine.locks import FileLock
from engine.server import measuring
from engine.server.command import installed_options, publishes_kv_events
from engine.server.record import ServerRecord, read_record
from engine.server.supervisor import Supervisor
from engine.server.warm import WarmStarts
from engine.store import RunStore
from engine.telemetry.sampler import Sampler
from engine.tuning.runner import TuningRunner

OWNER_LOCK = "owner.lock"


@dataclass(frozen=True)
class LabServices:
    """What pages and the command line work with."""

    settings: Settings
    environment: Environment
    store: RunStore
    supervisor: Supervisor
    compare: CompareRunner
    load: LoadTestRunner
    tuning: TuningRunner
    chats: ChatRegistry
    blocks: BlockWatch
    telemetry: Sampler
    fleet: Fleet
    lock: FileLock | None

    def close(self) -> None:
        """Cancel what runs, stop the server (unless it is somebody else's) and free the data folder."""
        self.telemetry.close()
        self.compare.close()
        self.load.close()
        self.tuning.close()
        self.chats.close()
        self.blocks.close()
        self.fleet.close()
        self.supervisor.close()
        if self.lock is not None:
            self.lock.release()


def open_lab(settings: Settings) -> LabServices:
    """Become the owner of the data folder; raises DataFolderInUse when another lab is."""
    lock = owner_lock(settings)
    if not lock.acquire():
        holder = (lock.holder() or {}).get("pid", "unknown")
        raise DataFolderInUse(
            f"Another vLLM Lab (process {holder}) uses the data folder {settings.data_dir}.",
            "Use that one, end it, or give this one a folder of its own with LAB_DATA_DIR.",
        )
    return _open_owned(settings, lock)


def open_beside(settings: Settings) -> tuple[LabServices, ServerRecord | None]:
    """For the command line: own the data folder if nobody does, else use the owner's server.

    The record is that of the owner's server, None where we own the folder or the owner has none ready.
    """
    lock = owner_lock(settings)
    if lock.acquire():
        return _open_owned(settings, lock), None
    running = read_record(settings.state_dir)
    services = _open(settings, None)
    if running is not None and running.ready and running.alive:
        services.supervisor.adopt(running)
        return services, running
    return services, None


def owner_lock(settings: Settings) -> FileLock:
    return FileLock(settings.state_dir / OWNER_LOCK)


def _open_owned(settings: Settings, lock: FileLock) -> LabServices:
    try:
        return _open(settings, lock)
    except BaseException:
        lock.release()
        raise


def _open(settings: Settings, lock: FileLock | None) -> LabServices:
    store = RunStore(settings.database)
    live = LiveBlocks(supported=lambda: publishes_kv_events(installed_options()))
    warm = WarmStarts(settings.logs_dir / "imports.log")
    supervisor = Supervisor(settings, store, owner=lock is not None, events=live, warm=warm)

    # They ask each other: what is measured must not share the machine with a chat.
    def require_nothing_measured() -> None:
        compare.require_idle()
        load.require_idle()
        tuning.require_idle()
        if reason := supervisor.measured_elsewhere():
            raise AlreadyRunning(reason, measuring.REMEDY)

    def answering() -> str:
        if chats.streaming():
            return "A chat answer is being written."
        return "The four requests of Live blocks are on their way." if blocks.sending else ""

    archive = ChatArchive(settings, store, supervisor.snapshot)
    chats = ChatRegistry(before_turn=require_nothing_measured, archive=archive, extra_fields=live.chat_fields)
    blocks = BlockWatch(live, supervisor.snapshot, before_sending=require_nothing_measured)
    compare = CompareRunner(settings, supervisor, store, answering)
    load = LoadTestRunner(settings, supervisor, store, answering)
    tuning = TuningRunner(settings, supervisor, store, answering, owner=lock is not None)
    environment = collect(settings)
    return LabServices(
        settings=settings,
        environment=environment,
        store=store,
        supervisor=supervisor,
        compare=compare,
        load=load,
        tuning=tuning,
        chats=chats,
        blocks=blocks,
        fleet=Fleet(),
        telemetry=Sampler(supervisor.snapshot, load.snapshot, environment.hardware.gpus),
        lock=lock,
    )
