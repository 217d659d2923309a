"""Former name of `poise_train.smaller`."""

from poise_train.smaller import *  # noqa: F403
