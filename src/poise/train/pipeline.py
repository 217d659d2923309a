"""Former name of `poise_train.pipeline`."""

from poise_train.pipeline import *  # noqa: F403
