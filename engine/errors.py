"""Every exception that reaches a person, each with a cause and a remedy.

LabError
├── ConfigError            a setting or an input that cannot work
├── ModelError             the weights cannot be had
│   ├── ModelNotFound      no such model (or it is private)
│   ├── ModelGated         the licence was not accepted, or no token
│   ├── ModelOffline       not in the cache, and the hub cannot be reached
│   └── ModelUnusable      there, but not a checkpoint vLLM can serve safely
├── DiskFull               no room for the model, the log or the results
├── AlreadyRunning         something of which there is only one runs already
├── DataFolderInUse        another vLLM Lab owns this data folder
├── StoreError             the database of runs can't be read or written
├── ServerError            the vLLM server
│   ├── ServerNotReady     nothing to talk to
│   └── ServerFailed       it did not start, or it died
├── RequestError           one request
│   ├── RequestRejected    the server answered with an error (status code kept)
│   ├── RequestInterrupted the stream ended before the answer did
│   └── PromptTooLong      prompt + answer do not fit into the context
└── BaselineError          the Hugging Face child process
"""

from __future__ import annotations


class LabError(Exception):
    """An error with a cause (one sentence) and a remedy (what to do next).

    ``str(error)`` is both, ready for a screen or a terminal.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        super().__init__(f"{cause} {remedy}".strip())


class ConfigError(LabError):
    """A setting or an input that cannot work."""


class ModelError(LabError):
    """The weights cannot be had."""


class ModelNotFound(ModelError):
    """No such model, or it is private."""


class ModelGated(ModelError):
    """The licence was not accepted, or no token was given."""


class ModelOffline(ModelError):
    """Not in the cache, and the hub cannot be reached."""


class ModelUnusable(ModelError):
    """There, but not a checkpoint that can be served safely."""


class DiskFull(LabError):
    """No room for the model, the log or the results."""


class AlreadyRunning(LabError):
    """Something of which there is only one runs already."""


class DataFolderInUse(LabError):
    """Another vLLM Lab owns this data folder."""


class StoreError(LabError):
    """The database of runs can't be read or written."""


class ServerError(LabError):
    """The vLLM server."""


class ServerNotReady(ServerError):
    """Nothing to talk to."""


class ServerFailed(ServerError):
    """The server did not start, or it died."""


class RequestError(LabError):
    """One request failed."""


class RequestRejected(RequestError):
    """The server answered with an error; ``status`` is the HTTP status code, None if there was none."""

    def __init__(self, cause: str, remedy: str = "", status: int | None = None) -> None:
        self.status = status
        super().__init__(cause, remedy)


class RequestInterrupted(RequestError):
    """The stream ended before the answer did."""


class PromptTooLong(RequestError):
    """Prompt and answer do not fit into the context."""


class BaselineError(LabError):
    """The Hugging Face child process."""
