"""Former name of `poise_lab.demo.digits`."""

from poise_lab.demo.digits import *  # noqa: F403
