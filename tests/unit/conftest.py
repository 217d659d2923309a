"""One profile for all properties: as many examples as fit in a minute for the folder, the same ones every time.

`POISE_PROPERTIES=long` looks much longer, and elsewhere each time.
"""

import os

from hypothesis import HealthCheck, settings
from many import many

from poise.testing import World

World.check_each = many(3, 1)
"""A check takes 2 ms. What is wrong with a state is mostly wrong after the next change too."""

settings.register_profile(
    "unit",
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("unit"), max_examples=1_500, derandomize=False)
settings.load_profile(os.environ.get("POISE_PROPERTIES", "unit"))
