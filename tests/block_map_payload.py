"""A recording made without the simulator, true to the payload's contract: fixed chunks on the left, pages on the right."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

KINDS = ("tokens", "reserved", "internal", "external", "free")
FRAMES = ("running", "waiting", "preempted", "finished")


def payload(
    slots: int = 1024, steps: int = 300, requests: int = 40, unit: int = 16, longest: int = 256, seed: int = 1
) -> dict[str, Any]:
    """Requests with prompts and outputs that fit into ``longest`` tokens; a few blocks at the end fit no chunk."""
    draw = random.Random(seed)
    prompts = [draw.randint(8, longest // 3) for _ in range(requests)]
    outputs = [draw.randint(8, longest // 3) for _ in range(requests)]
    arrivals = sorted(draw.randrange(max(1, steps // 2)) for _ in range(requests))
    asked = {"arrival": arrivals, "prompt": prompts, "output": outputs, "name": [""] * requests}
    sides = [_Side(asked, slots, steps, unit, longest, paged).run() for paged in (False, True)]
    return {"version": 1, "slots": slots, "steps": steps, "step_label": "step", "requests": asked, "sides": sides}


class _Side:
    def __init__(self, asked: dict[str, Any], slots: int, steps: int, unit: int, longest: int, paged: bool) -> None:
        self.asked, self.slots, self.steps, self.unit, self.longest, self.paged = (
            asked,
            slots,
            steps,
            unit,
            longest,
            paged,
        )
        self.blocks = slots // unit
        per_chunk = 1 if paged else longest // unit
        self.free = deque(range(0, self.blocks - per_chunk + 1, per_chunk))
        self.stays: dict[str, list[int]] = {"request": [], "sequence": [], "from": [], "to": [], "estimate": []}
        self.anchors: dict[str, list[int]] = {"stay": [], "frame": [], "tokens": []}
        self.holds: dict[str, list[int]] = {"stay": [], "frame": [], "logical": [], "physical": [], "count": []}
        self.series: dict[str, list[int]] = {name: [] for name in KINDS + FRAMES}
        self.events: dict[str, list[Any]] = {"frame": [], "kind": [], "request": [], "text": []}
        self.running: dict[int, tuple[int, int, list[int]]] = {}
        self.finished = 0

    def run(self) -> dict[str, Any]:
        waiting: deque[int] = deque()
        for frame in range(self.steps):
            self._leave(frame)
            waiting.extend(r for r, at in enumerate(self.asked["arrival"]) if at == frame)
            self._grow(frame)
            while waiting and self._needed(waiting[0]) <= len(self.free):
                self._admit(waiting.popleft(), frame)
            if waiting:
                self._say(frame, "wait", waiting[0], f"Request {waiting[0]} waits: no room")
            self._count(frame, len(waiting))
        return {
            "allocator": "paged" if self.paged else "contiguous_max",
            "title": "Paged" if self.paged else "Contiguous (max length)",
            "unit": self.unit,
            "blocks": self.blocks,
            "stays": self.stays,
            "anchors": self.anchors,
            "holds": self.holds,
            "cached": {"frame": [], "physical": [], "on": []},
            "series": self.series,
            "events": self.events,
        }

    def _final(self, request: int) -> int:
        return self.asked["prompt"][request] + self.asked["output"][request]

    def _needed(self, request: int) -> int:
        """Free pages for the whole request, so that nobody has to be preempted; or one chunk."""
        ahead = sum(-(-self._final(r) // self.unit) - len(held) for r, _, held in self.running.values())
        return ahead - (-self._final(request) // self.unit) if self.paged else 1

    def _tokens(self, stay: int, frame: int) -> int:
        return self.asked["prompt"][self.running[stay][0]] + frame - self.running[stay][1]

    def _admit(self, request: int, frame: int) -> None:
        stay = len(self.stays["from"])
        for name, value in (("request", request), ("sequence", 0), ("from", frame)):
            self.stays[name].append(value)
        self.stays["to"].append(min(self.steps, frame + self.asked["output"][request]))
        self.stays["estimate"].append(0 if self.paged else self.longest)
        for name, value in (("stay", stay), ("frame", frame), ("tokens", self.asked["prompt"][request])):
            self.anchors[name].append(value)
        self.running[stay] = (request, frame, [])
        if self.paged:
            self._grow(frame)
        else:
            self._hold(stay, frame, self.longest // self.unit)
        self._say(frame, "admit", request, f"Request {request} gets memory")

    def _hold(self, stay: int, frame: int, count: int) -> None:
        held = self.running[stay][2]
        physical = self.free.popleft()
        for name, value in zip(self.holds, (stay, frame, len(held), physical, count), strict=True):
            self.holds[name].append(value)
        held.append(physical)

    def _grow(self, frame: int) -> None:
        if self.paged:
            for stay, (_, _, held) in self.running.items():
                while len(held) * self.unit < self._tokens(stay, frame):
                    self._hold(stay, frame, 1)

    def _leave(self, frame: int) -> None:
        for stay in [stay for stay in self.running if self.stays["to"][stay] == frame]:
            request, _, held = self.running.pop(stay)
            self.free.extend(held)
            self.finished += 1
            self._say(frame, "finish", request, f"Request {request} is finished")

    def _say(self, frame: int, kind: str, request: int, text: str) -> None:
        if not (kind == "wait" and self.events["text"] and self.events["text"][-1] == text):
            for name, value in zip(self.events, (frame, kind, request, text), strict=True):
                self.events[name].append(value)

    def _count(self, frame: int, waiting: int) -> None:
        sums = dict.fromkeys(KINDS, 0)
        sums["external"] = self.slots - self.blocks * self.unit
        for stay, (request, _, held) in self.running.items():
            tokens, final = self._tokens(stay, frame), self._final(request)
            size = len(held) * self.unit if self.paged else self.longest
            sums["tokens"] += tokens
            sums["reserved"] += min(size, final) - tokens
            sums["internal"] += size - min(size, final)
        sums["free"] = self.slots - sum(sums.values())
        frames = {"running": len(self.running), "waiting": waiting, "preempted": 0, "finished": self.finished}
        for name, value in (sums | frames).items():
            self.series[name].append(value)
