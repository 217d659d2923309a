"""Former name of `poise_train.local`."""

from poise_train.local import *  # noqa: F403
