"""Poise: an open scheduler for mixed fleets of AI accelerators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from poise.calls import Future
    from poise.client import Client
    from poise.client.asynchronous import AsyncClient
    from poise.drivers.heartbeat import step
    from poise.errors import CallFailed, CallLost, GangBroken, Misused, PoiseError
    from poise.model.reports.streams import LogPiece
    from poise.sdk import Mapped, Task, close, gather, rank, task, world_size

_HOMES = {
    "AsyncClient": "poise.client.asynchronous",
    "CallFailed": "poise.errors",
    "CallLost": "poise.errors",
    "Client": "poise.client",
    "Future": "poise.calls",
    "GangBroken": "poise.errors",
    "LogPiece": "poise.model.reports.streams",
    "Mapped": "poise.sdk",
    "Misused": "poise.errors",
    "PoiseError": "poise.errors",
    "Session": "poise_train",
    "Task": "poise.sdk",
    "close": "poise.sdk",
    "gather": "poise.sdk",
    "rank": "poise.sdk",
    "step": "poise.drivers.heartbeat",
    "task": "poise.sdk",
    "world_size": "poise.sdk",
}
"""Public names and their modules, which are imported at first use, so that commands start faster."""

__all__ = [
    "AsyncClient",
    "CallFailed",
    "CallLost",
    "Client",
    "Future",
    "GangBroken",
    "LogPiece",
    "Mapped",
    "Misused",
    "PoiseError",
    "Session",
    "Task",
    "close",
    "gather",
    "rank",
    "step",
    "task",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `poise` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
