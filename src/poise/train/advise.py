"""Former name of `poise_train.advise`."""

from poise_train.advise import *  # noqa: F403
