"""Chat with the running model."""

from engine.chat.request import request_body, sdk_client, stream_with_sdk
from engine.chat.saving import ChatArchive, turns_to_csv
from engine.chat.session import ChatRegistry, ChatSession
from engine.chat.turn import ChatOptions, ChatSnapshot, SaveState, Turn, TurnStatus

__all__ = [
    "ChatArchive",
    "ChatOptions",
    "ChatRegistry",
    "ChatSession",
    "ChatSnapshot",
    "SaveState",
    "Turn",
    "TurnStatus",
    "request_body",
    "sdk_client",
    "stream_with_sdk",
    "turns_to_csv",
]
