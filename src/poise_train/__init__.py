"""Training in PyTorch that can be stopped, resized and gone on with; `poise.Session` is its one entrance.

These names need PyTorch (`pip install 'poise-scheduler[torch]'`), which is imported when one of them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poise_train.model.phases import Pace, PhaseRules
    from poise_train.policy.checkpoints import Keep
    from poise_train.restoring import Restored, load
    from poise_train.session import Session

_HOMES = {
    "Keep": "policy.checkpoints",
    "Pace": "model.phases",
    "PhaseRules": "model.phases",
    "Restored": "restoring",
    "Session": "session",
    "load": "restoring",
}

__all__ = ["Keep", "Pace", "PhaseRules", "Restored", "Session", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `poise_train` has no attribute `{name}`")
    return getattr(import_module(f"poise_train.{_HOMES[name]}"), name)
