"""Former name of `poise_train.memory`."""

from poise_train.memory import *  # noqa: F403
