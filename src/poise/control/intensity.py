"""The intensity or the price of the home's electricity: the good time for work that can wait, and the values for
accounts.

The values come from `intensity.yaml` in the home, which is read again when it changes. The start of a `flexible` job is
part of the submitted job, as if the user had written it, so decisions and replays need nothing else.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import random

from poise.errors import SpecError, located
from poise.model.intensity import USUAL_RUN, Intensity, compile_intensity, started_well
from poise.model.profiles import Profile
from poise.model.spec import Compiled
from poise.units import format_duration


class Intensities:
    """The intensity of the home's electricity, from a file. Thread-safe."""

    def __init__(self, path: Path | None, place: Callable[[], float] = random) -> None:
        """`place` chooses among good starts, as in `Intensity.good_start`."""
        self._path, self._place = path, place
        self._read: tuple[tuple[int, int], Intensity] | None = None

    def of_home(self) -> Intensity | None:
        """Return the values of the home; None without a file. Raises SpecError for an invalid file."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        state, read = (found.st_mtime_ns, found.st_size), self._read
        if read is None or read[0] != state:
            from poise.drivers.yamlfile import load_yaml, place_in_file  # few homes have such a file

            with located(place_in_file(self._path)):
                self._read = read = (state, compile_intensity(load_yaml(self._path)))
        return read[1]

    def valid(self) -> Intensity | None:
        """Return the values of the home; None without a file, and for an invalid one."""
        try:
            return self.of_home()
        except SpecError:
            return None

    def placed_in_time(self, compiled: Compiled, wall: float, profiles: Mapping[str, Profile]) -> Compiled:
        """Return a job with a good start in the time that it may wait; `wall` in seconds since 1970. Raises SpecError
        if the home has no values.
        """
        if not compiled.flexible:
            return compiled
        intensity = self.of_home()
        if intensity is None:
            what, need = "this home does not know when electricity is clean or cheap", str(self._path or "a home")
            hint = "write `intensity.yaml`, or submit it without `flexible`"
            raise SpecError(what, field="flexible", need=need, hint=hint)
        units, start = started_well(
            compiled.units, compiled.flexible, intensity, wall, lambda kind: _usual(profiles.get(kind)), self._place()
        )
        if not start.after:
            return compiled
        better = "cleaner" if intensity.unit == "kg/kWh" else "cheaper"
        note = (
            f"begins in {format_duration(units[0].begin)}, when electricity is {better}: "
            f"{start.value:.3g} {intensity.unit} in the mean, {start.now:.3g} now"
        )
        return compiled._replace(units=units, note="; ".join(filter(None, (compiled.note, note))))


def _usual(profile: Profile | None) -> int:
    return profile.mean if profile is not None and profile.count else USUAL_RUN


UNKNOWN = Intensities(None)
"""Of a control plane without a home."""

__all__ = ["UNKNOWN", "Intensities"]
