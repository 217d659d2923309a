"""Former name of `poise_lab.demo.minilm`."""

from poise_lab.demo.minilm import *  # noqa: F403
