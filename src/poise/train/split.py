"""Former name of `poise_train.split`."""

from poise_train.split import *  # noqa: F403
