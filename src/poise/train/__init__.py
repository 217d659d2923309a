"""Former name of `poise_train`."""

from poise_train import *  # noqa: F403
