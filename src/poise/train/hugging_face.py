"""Former name of `poise_train.hugging_face`."""

from poise_train.hugging_face import *  # noqa: F403
