"""Former name of `poise_train.lightning`."""

from poise_train.lightning import *  # noqa: F403
