"""One profile for all properties: as many examples as fit in a minute for the whole folder, the same ones every time."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("unit"), max_examples=2_000, derandomize=False)
settings.load_profile("unit")
