"""Training in PyTorch that can be stopped, resized and gone on with; `poise.Session` is its one entrance.

Importing `poise.train` imports PyTorch (`pip install 'poise-scheduler[torch]'`).
"""

from poise.policy.checkpoints import Keep
from poise.train.restoring import Restored, load
from poise.train.session import Session

__all__ = ["Keep", "Restored", "Session", "load"]
