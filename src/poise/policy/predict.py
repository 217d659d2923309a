"""How long a class of work runs on a model of device, with the uncertainty and the source of that estimate.

In this order: what was measured there (history); what was measured elsewhere, or declared, carried over by a throughput
table; a roofline of what the work says it does and what the device can do; what was measured elsewhere, carried over
by the devices' peaks. Where none of these knows anything, every device is as good as another.
"""

from collections.abc import Mapping, Sequence
from math import sqrt

from poise.model.fleet import DeviceModel
from poise.model.jobs import Work
from poise.model.profiles import Estimate, Profile, estimate_run
from poise.policy.feasible import precision_on
from poise.units import SECOND


class Speeds:
    """Estimates for one view. `profiles` and `throughputs` are keyed by class, and by `class@model`."""

    def __init__(
        self, models: Sequence[DeviceModel], profiles: Mapping[str, Profile], throughputs: Mapping[str, float]
    ) -> None:
        self._models = models
        self._profiles = profiles
        self._throughputs = throughputs
        self._known: dict[tuple[str, str, int, Work, bool], list[Estimate]] = {}

    def of(self, kind: str, precision: str, declared: int, work: Work, *, devices: bool) -> list[Estimate]:
        """By device model of the fleet: the run time in nanoseconds; `devices` or processors alone are looked at, the
        others are estimated as if nothing were known of them.

        `declared` is what the user expects on the fastest device that the throughput table names, or anywhere.
        """
        key = (kind, precision, declared, work, devices)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._estimate(kind, precision, declared, work, devices)
        return found

    def _estimate(self, kind: str, precision: str, declared: int, work: Work, devices: bool) -> list[Estimate]:
        anywhere = estimate_run(self._profiles.get(kind), declared)
        tabled = {
            index: rate
            for index, model in enumerate(self._models)
            if (rate := self._throughputs.get(f"{kind}@{model.name}")) and (model.kind != "cpu") == devices
        }
        measured = {
            index: profile
            for index, model in enumerate(self._models)
            if (profile := self._profiles.get(f"{kind}@{model.name}"))
            and profile.count
            and (model.kind != "cpu") == devices
        }
        estimates = []
        for index, model in enumerate(self._models):
            if (model.kind != "cpu") != devices:
                estimates.append(anywhere)
            elif index in measured:
                estimates.append(estimate_run(measured[index], declared))
            elif index in tabled:
                estimates.append(_by_table(index, tabled, measured, declared or anywhere.mean))
            else:
                estimates.append(
                    _by_roofline(model, precision, work)
                    or _carried_over(model, precision, {self._models[of]: measured[of] for of in measured})
                    or anywhere
                )
        return estimates


def _by_table(index: int, tabled: Mapping[int, float], measured: Mapping[int, Profile], declared: int) -> Estimate:
    """From a device of the table on which it was measured, else from what was declared for the table's fastest.

    A quarter of the estimate is left as uncertainty: Gavel's own table was measured at one batch size for each model.
    """
    known = next((of for of in tabled if of in measured), None)
    if known is None:
        mean = declared * max(tabled.values()) / tabled[index]
    else:
        mean = measured[known].mean * tabled[known] / tabled[index]
    return Estimate(max(1, int(mean)), int(mean) // 4, "throughput table")


def _by_roofline(model: DeviceModel, precision: str, work: Work) -> Estimate | None:
    """The roofline bound (Williams et al., 2009): operations over peak rate or bytes over bandwidth, the larger.

    A bound is reached to a half at best by most training (30-55 % of peak in public MLPerf submissions), so it counts
    twice, and as uncertain as it is long.
    """
    seconds = bound(model, precision, work)
    if not seconds:
        return None
    mean = int(2 * seconds * SECOND)
    return Estimate(max(1, mean), mean, "roofline")


def bound(model: DeviceModel, precision: str, work: Work) -> float:
    """Seconds that a device needs at least for this work; 0 where nothing is known."""
    rate = _rate(model, precision)
    compute = work.flops / rate if work.flops and rate else 0.0
    transfer = work.bytes / model.bandwidth if work.bytes and model.bandwidth else 0.0
    return max(compute, transfer)


def _carried_over(model: DeviceModel, precision: str, measured: Mapping[DeviceModel, Profile]) -> Estimate | None:
    """A run measured on another device, scaled by the geometric mean of the ratios of peak rate and of bandwidth: what
    lies between work that is bound by the one and by the other. As uncertain as it is long.
    """
    for other, profile in measured.items():
        ratio = _ratio(_rate(other, precision), _rate(model, precision)) * _ratio(other.bandwidth, model.bandwidth)
        if ratio != 1.0:
            mean = max(1, int(profile.mean * sqrt(ratio)))
            return Estimate(mean, mean, "roofline")
    return None


def _rate(model: DeviceModel, precision: str) -> int:
    rates = dict(model.rates)
    runs_in = precision_on(model, precision or "fp32")
    return rates.get(runs_in or "", 0) or max(rates.values(), default=0)


def _ratio(over: int, under: int) -> float:
    return over / under if over and under else 1.0
