"""Former name of `poise_train.asynchronous`."""

from poise_train.asynchronous import *  # noqa: F403
