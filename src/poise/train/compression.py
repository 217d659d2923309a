"""Former name of `poise_train.compression`."""

from poise_train.compression import *  # noqa: F403
