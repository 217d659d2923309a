"""The controller: the control plane as a pure state machine."""

from poise.kernel.controller.controller import Controller
from poise.kernel.controller.settings import ROUND, Settings, with_latest_policy

__all__ = ["ROUND", "Controller", "Settings", "with_latest_policy"]
