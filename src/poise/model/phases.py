"""Former name of `poise_train.model.phases`."""

from poise_train.model.phases import *  # noqa: F403
