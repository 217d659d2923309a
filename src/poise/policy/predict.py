"""Run time estimates of a class of work on a device model, with their uncertainty and source.

Sources, in order of precedence: measurements of the class there (`history`), with the declared time of this run
(`declared and history`); measurements elsewhere, or a declared time, converted by a `throughput table`; a `roofline` of
the declared work and the device's peaks; the user's `declared` time; measurements on another model, scaled by the
devices' peaks (`history on A100-80, scaled`) or, if these are unknown, unscaled (`history elsewhere`). Without any of
these, the run time is a guess (`default`), and only a throughput table tells devices apart.

An estimate for an elastic unit is for its least tasks; with more tasks its run time is proportionally shorter.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from poise.model.decisions import UNKNOWN
from poise.model.fleet import DeviceModel, Ints, Resident
from poise.model.jobs import Work
from poise.model.profiles import DEFAULT_RUN, NO_END, Estimate, Profile, estimate_run, outlasting
from poise.model.progress import ALL
from poise.model.resources import Shape
from poise.model.tenants import declared_class
from poise.model.views import Candidate, Snapshot
from poise.policy.feasible import precision_on
from poise.units import SECOND

MOST_RUNS = 65_536
"""Maximum number of cached run times; the cache is cleared when it is full."""

HUNDREDTH = ALL // 100
"""Minimum progress from which a unit's pace is estimated."""

TABLE_VARIES = 0.25
"""Uncertainty of a table's estimate, as a part of it: Gavel's table was measured at one batch size for each model."""

PACE_VARIES = 10
"""The deviation of an estimate by a unit's own pace is 1/10 of its mean."""


NOTHING, MEASURED, MORE = range(3)
"""What an estimate depends on: on no profile; on that of its class on its model, and on the declared time; on more."""


class _Left(NamedTuple):
    """A candidate's remaining run time, by model (`Speeds.left`) and the shortest, with all inputs: it is valid while
    all of them are the same objects.
    """

    candidate: Candidate
    able: Sequence[bool]
    of: list[Estimate]
    runs: dict[int, int]
    shortest: int


class Speeds:
    """Estimates for one view. `profiles` and `throughputs` are keyed by class, and by `class@model`. `runs` caches
    results of earlier views, which are valid while their profiles are unchanged.
    """

    def __init__(
        self,
        models: Sequence[DeviceModel],
        profiles: Mapping[str, Profile],
        throughputs: Mapping[str, float],
        runs: dict[Any, Any] | None = None,
    ) -> None:
        self._models = models
        self.profiles = profiles
        self.throughputs = throughputs
        self._runs = {} if runs is None else runs
        self._looked_up: dict[tuple[str, str, int, Work, bool], list[Estimate]] = {}
        self._sources: dict[str, tuple[Profile | None, ...]] = {}
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        self._known: dict[tuple[str, bool], tuple[dict[int, DeviceModel], dict[int, float], dict[int, Profile]]] = {}
        self._places: dict[tuple[str, bool], int] = {}
        self._left: dict[str, _Left] = {}
        self._left_before: dict[str, _Left] = {}
        self._devices = [index for index, model in enumerate(models) if model.kind != "cpu"]
        self._called = tuple(dict.fromkeys(model.called for model in models))
        for index, model in enumerate(models):
            self._places.setdefault((model.called, model.kind != "cpu"), index)

    def of(self, kind: str, precision: str, declared: int, work: Work, *, devices: bool) -> list[Estimate]:
        """Return the run time in nanoseconds by device model of the fleet. Only `devices`, or only processors, have
        meaningful values.

        `declared` is the user's estimate for the fastest device in the throughput table, or for any device without one.
        """
        key = (kind, precision, declared, work, devices)
        found = self._looked_up.get(key)
        if found is None:
            if len(self._looked_up) >= MOST_RUNS:
                self._looked_up.clear()
            found = self._looked_up[key] = self._remembered(key)
        return found

    def _remembered(self, key: tuple[str, str, int, Work, bool]) -> list[Estimate]:
        """Return a cached estimate of an earlier view if its profiles are unchanged; otherwise estimate and cache."""
        kind, precision, declared, work, devices = key
        sources = self._sources.get(kind)
        if sources is None:
            sources = self._sources[kind] = self.profiles_of(self.sources_of(kind))
        known: tuple[Any, Any, list[Estimate]] | None = self._runs.get(key)
        if known is not None and known[0] is self.throughputs and known[1] == sources:
            return known[2]
        found = self._estimate(kind, precision, declared, work, devices=devices)
        if len(self._runs) >= MOST_RUNS:
            self._runs.clear()
        self._runs[key] = (self.throughputs, sources, found)
        return found

    def tells_models_apart(self, *, devices: bool) -> bool:
        """Return whether there are several models of devices, or of processors, that estimates could distinguish."""
        return (len(self._devices) if devices else len(self._models) - len(self._devices)) > 1

    def sources_of(self, kind: str, model: str = "") -> tuple[str, ...]:
        """Return the names of the profiles for estimates of a class; also of runs on a `model` that is gone."""
        known = self._names.get((kind, model))
        if known is None:
            elsewhere = (f"{kind}@{model}",) if model and model not in self._called else ()
            known = self._names[kind, model] = (kind, *[f"{kind}@{name}" for name in self._called], *elsewhere)
        return known

    def profiles_of(self, names: tuple[str, ...]) -> tuple[Profile | None, ...]:
        """Return the current profiles; None where nothing was learned."""
        return tuple(map(self.profiles.get, names))

    def shortest(self, candidate: Candidate, able: Sequence[bool]) -> int:
        """Return the remaining nanoseconds of a waiting unit in its own artifact, on the fastest model that is `able`
        to run it.
        """
        known = self._left.get(candidate.unit)
        if known is None or known.candidate is not candidate or known.able is not able:
            if not candidate.shape.gpus or not any(able[index] for index in self._devices):
                return candidate.expected
            known = self._look(candidate, able)
        return known.shortest

    def left(self, candidate: Candidate, shape: Shape, able: Sequence[bool]) -> dict[int, int]:
        """Return the remaining nanoseconds by model, for models with the devices that the unit needs; read-only. How
        far a run outlived its estimate does not change the ratios between models.
        """
        if not shape.gpus:
            return {}
        if shape is candidate.shape:
            known = self._left.get(candidate.unit)
            if known is None or known.candidate is not candidate or known.able is not able:
                known = self._look(candidate, able)
            return known.runs
        of = self.of(candidate.kind, shape.wants.precision, candidate.declared, candidate.work, devices=True)
        return self._by_device(candidate, able, of)

    def take_over(self, earlier: "Speeds") -> None:
        """Reuse what `earlier` found for the same fleet, where it comes from the same estimates."""
        self._left_before = earlier._left

    def _look(self, candidate: Candidate, able: Sequence[bool]) -> _Left:
        """Return the remaining run time of a candidate that needs devices, in its own artifact; cached."""
        precision = candidate.shape.wants.precision
        of = self.of(candidate.kind, precision, candidate.declared, candidate.work, devices=True)
        known = self._left_before.get(candidate.unit)
        if known is None or known.of is not of or known.candidate is not candidate or known.able is not able:
            runs = self._by_device(candidate, able, of)
            known = _Left(candidate, able, of, runs, min(runs.values(), default=candidate.expected))
        if len(self._left) >= MOST_RUNS:
            self._left.clear()
        self._left[candidate.unit] = known
        return known

    def _by_device(self, candidate: Candidate, able: Sequence[bool], of: list[Estimate]) -> dict[int, int]:
        """Return the remaining run time by model, for those that are `able`."""
        could = [index for index in self._devices if able[index]]
        if not could:
            return {}
        if of.count(of[0]) == len(of):  # all models alike
            return dict.fromkeys(could, left_of(candidate, of[0]))
        fastest = min(could, key=lambda index: of[index].mean)
        left, mean = left_of(candidate, of[fastest], told_apart=True), max(1, of[fastest].mean)
        return {index: max(1, left * of[index].mean // mean) for index in could}

    def of_attempt(self, resident: Resident) -> Estimate:
        """Return the run time of an attempt in nanoseconds, from its start: on its device, in its artifact and size,
        without the work saved by earlier attempts. A service has no end.
        """
        if resident.serves or resident.foreseen:
            return _by_itself(resident)
        return _without_saved(resident, self._of_work(resident), told_apart=bool(self.throughputs))

    def both_of_attempt(self, resident: Resident) -> tuple[Estimate, Estimate]:
        """Return the run time of an attempt as the mean and as the `likely` estimate."""
        if resident.serves or resident.foreseen:
            known = _by_itself(resident)
            return known, known
        whole, told_apart = self._of_work(resident), bool(self.throughputs)
        counted_on, mean = likely(whole), _without_saved(resident, whole, told_apart=told_apart)
        return mean, mean if counted_on is whole else _without_saved(resident, counted_on, told_apart=told_apart)

    def measured_of(self, kind: str, model: str) -> Profile | None:
        """Return the profile by which alone attempts of this class on this model are estimated, if there is one."""
        measured = self.profiles.get(f"{kind}@{model}")
        return measured if measured is not None and measured.count and not self.throughputs else None

    def learns(self, resident: Resident) -> int:
        """Return what the estimate of an attempt depends on: `NOTHING`, `MEASURED` or `MORE`."""
        if resident.serves or resident.foreseen:
            return NOTHING
        if resident.progress and not self.throughputs and whole_by_progress(resident, resident.size):
            return NOTHING
        whole = not (resident.outlived or resident.least or resident.progress or resident.saved)
        return MEASURED if whole and self.measured_of(resident.kind, resident.model) is not None else MORE

    def learns_waiting(self, candidate: Candidate, able: Sequence[bool]) -> int:
        """Return the same of the remaining run time of a waiting unit (`shortest`)."""
        if not candidate.shape.gpus or not any(able[index] for index in self._devices):
            return NOTHING
        if not self.only_model:
            return MORE
        if candidate.left or (candidate.progress and whole_by_progress(candidate, candidate.tasks)):
            return NOTHING
        whole = not (candidate.outlived or candidate.progress or candidate.saved)
        return MEASURED if whole and self.measured_of(candidate.kind, self.only_model) is not None else MORE

    def is_guess(self, one: Candidate | Resident, able: Sequence[bool]) -> bool:
        """Return whether the run time of a unit is unknown on all devices that are `able` to run it."""
        shape = one.shape
        of = self.of(one.kind, shape.wants.precision, one.declared, one.work, devices=True)
        return shape.gpus > 0 and all(of[index].source == UNKNOWN for index in self._devices if able[index])

    @cached_property
    def typical(self) -> int:
        """The mean run time of the known classes on devices, in nanoseconds; `DEFAULT_RUN` if there is none."""
        devices = {self._models[index].called for index in self._devices}
        known = [of.mean for name, of in self.profiles.items() if of.count and name.rpartition("@")[2] in devices]
        return sum(known) // len(known) if known else DEFAULT_RUN

    @property
    def only_model(self) -> str:
        """The name of the only model of devices; empty if there are several or none."""
        return self._models[self._devices[0]].called if len(self._devices) == 1 else ""

    def _of_work(self, resident: Resident) -> Estimate:
        """Return the estimate for all of a unit's work, in its least size."""
        shape, devices = resident.shape, resident.shape.gpus > 0
        if (measured := self.measured_of(resident.kind, resident.model)) is not None:
            return estimate_run(measured, resident.declared)
        place = self._places.get((resident.model, devices))
        if place is None:  # its node is gone
            known = self.profiles.get(f"{resident.kind}@{resident.model}") or self.profiles.get(resident.kind)
            return estimate_run(known, resident.declared)
        of = self.of(resident.kind, shape.wants.precision, resident.declared, resident.work, devices=devices)
        return of[place]

    def _estimate(self, kind: str, precision: str, declared: int, work: Work, *, devices: bool) -> list[Estimate]:
        looked_at, tabled, measured = self._known_of(kind, devices)
        if measured and len(measured) == len(looked_at) and not tabled:
            return self._by_model({index: estimate_run(profile, declared) for index, profile in measured.items()})
        anywhere = estimate_run(self.profiles.get(kind), declared)
        if anywhere.source == "history":
            anywhere = anywhere._replace(source="history elsewhere")
        said = estimate_run(None, declared) if declared else None
        estimates = {}
        for index, model in looked_at.items():
            if index in tabled and not measured and anywhere.source == UNKNOWN:
                estimates[index] = _guessed(index, tabled)
            elif index in tabled and (declared or not measured):  # for this run, unless its class is better known
                seen = [
                    _carried(index, of, tabled, estimate_run(measured[of], declared)) for of in measured if of in tabled
                ]
                varies = _table_varies(measured[of] for of in measured if of in tabled) if declared else TABLE_VARIES
                by_table = _by_table(index, tabled, declared or anywhere.mean, varies)
                estimates[index] = min([*seen, by_table], key=_uncertainty)
            elif index in tabled and any(of in tabled for of in measured):
                estimates[index] = _pooled(index, tabled, measured)
            elif index in measured:
                estimates[index] = estimate_run(measured[index], declared)
            else:
                estimates[index] = (
                    _by_roofline(model, precision, work)
                    or said
                    or _carried_over(model, precision, {self._models[of]: measured[of] for of in measured})
                    or anywhere
                )
        return self._by_model(estimates) if estimates else [anywhere] * len(self._models)

    def _known_of(
        self, kind: str, devices: bool
    ) -> tuple[dict[int, DeviceModel], dict[int, float], dict[int, Profile]]:
        """Return the models of devices, or processors; their rates by the table, and the profiles measured there."""
        found = self._known.get((kind, devices))
        if found is None:
            looked_at = {index: model for index, model in enumerate(self._models) if (model.kind != "cpu") == devices}
            declared_as = declared_class(kind)
            tabled = {
                index: rate
                for index, model in looked_at.items()
                if (rate := self.throughputs.get(f"{declared_as}@{model.name}"))
            }
            measured = {
                index: profile
                for index, model in looked_at.items()
                if (profile := self.profiles.get(f"{kind}@{model.called}")) and profile.count
            }
            found = self._known[kind, devices] = looked_at, tabled, measured
        return found

    def _by_model(self, estimates: Mapping[int, Estimate]) -> list[Estimate]:
        """Return one shared object for all models where they do not differ; models not examined get any estimate."""
        some = next(iter(estimates.values()))
        if all(estimate == some for estimate in estimates.values()):
            return [some] * len(self._models)
        return [estimates.get(index, some) for index in range(len(self._models))]


def speeds_of(view: Snapshot) -> Speeds:
    """Return the estimates for a view; reuse those of an earlier view with the same inputs."""
    fleet = view.fleet
    known: Speeds | None = fleet.runs.get("speeds")
    if known is None or known.profiles is not view.profiles or known.throughputs is not view.throughputs:
        found = fleet.runs["speeds"] = Speeds(fleet.models, view.profiles, view.throughputs, fleet.runs)
        if known is not None:
            found.take_over(known)
        return found
    return known


def _by_itself(resident: Resident) -> Estimate:
    """Return the estimate of a service, or of an attempt that reports its pace, regardless of its class."""
    return NO_END if resident.serves else Estimate(resident.foreseen, resident.foreseen // PACE_VARIES, "its own pace")


def _without_saved(resident: Resident, estimate: Estimate, *, told_apart: bool) -> Estimate:
    """Return the estimate for an attempt's remaining work, in its current size."""
    if resident.outlived or resident.least:
        estimate = in_size(outlasting(estimate, resident.outlived), resident.least, resident.size, resident.gains)
    if resident.progress:
        seen = 0 if told_apart else whole_by_progress(resident, resident.size)
        if seen:
            estimate = estimate._replace(mean=seen, deviation=seen // PACE_VARIES)
        left = max(1, estimate.mean * (ALL - resident.progress) // ALL)
        return estimate._replace(mean=left + resident.restore)
    if not resident.saved:
        return estimate
    return estimate._replace(mean=max(1, estimate.mean - resident.saved // resident.size + resident.restore))


def _uncertainty(estimate: Estimate) -> float:
    return estimate.deviation / max(1, estimate.mean)


def likely(estimate: Estimate) -> Estimate:
    """Return a shorter estimate where runs of a class vary so much that the mean says little: most are much shorter,
    and a few make up most of the mean. A run that takes longer counts as a long one, and others of its class go first:
    that is least attained service first (Tiresias, Gu et al., 2019), which is optimal where lengths are known only to
    be spread widely (Gittins, 1979, for decreasing hazard rates).
    """
    if 2 * estimate.deviation <= estimate.mean:
        return estimate
    mean = max(1, 2 * (estimate.mean - estimate.deviation), estimate.mean // 8)
    return estimate._replace(mean=mean, deviation=mean // 2)


def likely_each(means: Ints, deviations: Ints) -> tuple[Ints, Ints]:
    """Vectorized `likely`: the means and deviations."""
    shorter = np.maximum(np.maximum(1, 2 * (means - deviations)), means // 8)
    varies = 2 * deviations > means
    return np.where(varies, shorter, means), np.where(varies, shorter // 2, deviations)


def left_of(candidate: Candidate, estimate: Estimate, *, told_apart: bool = False) -> int:
    """Return the likely remaining nanoseconds of a waiting unit, given the estimate of its whole run. If models are
    `told_apart`, its pace on one of them says nothing of the others.
    """
    if candidate.left:
        return candidate.left
    mean = outlasting(likely(estimate), candidate.outlived).mean
    if candidate.progress:
        seen = 0 if told_apart else whole_by_progress(candidate, candidate.tasks)
        return max(1, (seen or mean) * (ALL - candidate.progress) // ALL)
    return max(1, mean - candidate.saved // (candidate.least or candidate.tasks)) if candidate.saved else mean


def whole_by_progress(of: Candidate | Resident, tasks: int) -> int:
    """Return the nanoseconds that all of the work takes at the pace of earlier attempts; 0 if their progress is too
    small, or the unit is elastic or has no devices.
    """
    if of.least or not of.shape.gpus or of.progress < HUNDREDTH:
        return 0
    return of.attained // (of.shape.gpus * tasks) * ALL // of.progress


def in_size(estimate: Estimate, least: int, size: int, gains: int = 0) -> Estimate:
    """Convert an estimate for the `least` tasks of an elastic unit (0: not elastic) to its current size: by the
    reported speedup `gains`, in thousandths, or else (0) in proportion, as its completed work is counted too.
    """
    if not least or size == least:
        return estimate
    over, under = (1000, gains) if gains else (least, size)
    return estimate._replace(mean=max(1, estimate.mean * over // under), deviation=estimate.deviation * over // under)


def _table_varies(measured: Iterable[Profile]) -> float:
    """Return the uncertainty of a declared time that a table converts: the mean error of the class's declared times,
    including one prior run with the table's own uncertainty.
    """
    missed, weight = TABLE_VARIES, 1.0
    for profile in measured:
        if profile.ratio:
            by, seen = profile.missed_by
            missed, weight = missed + by, weight + seen
    return max(TABLE_VARIES, missed / weight)


def _by_table(index: int, tabled: Mapping[int, float], declared: int, varies: float) -> Estimate:
    """Return the estimate from the time declared for the table's fastest device."""
    mean = declared * max(tabled.values()) / tabled[index]
    return Estimate(max(1, int(mean)), int(mean * varies), "throughput table")


def _guessed(index: int, tabled: Mapping[int, float]) -> Estimate:
    """Return the estimate of an unknown run: the table tells how fast a device is, and not how long a run is."""
    mean = int(DEFAULT_RUN * max(tabled.values()) / tabled[index])
    return Estimate(max(1, mean), mean, UNKNOWN)


def _carried(index: int, of: int, tabled: Mapping[int, float], there: Estimate) -> Estimate:
    """Convert an estimate from the model `of`, where the class was measured, to another model by the table."""
    if index == of:
        return there
    mean = max(1, int(there.mean * tabled[of] / tabled[index]))
    deviation = max(int(there.deviation * tabled[of] / tabled[index]), int(mean * TABLE_VARIES))
    return Estimate(mean, deviation, "throughput table")


def _pooled(index: int, tabled: Mapping[int, float], measured: Mapping[int, Profile]) -> Estimate:
    """Return the estimate from all measurements of the class, converted by the table: runs on one model may have been
    longer ones than those on another, and the table gives the relative speeds. A device with measurements of its own
    needs no table.
    """
    runs = [(profile.count, profile, tabled[of]) for of, profile in measured.items() if of in tabled]
    count = sum(number for number, _, _ in runs)
    mean = sum(number * profile.mean * rate for number, profile, rate in runs) / count / tabled[index]
    deviation = sum(number * profile.deviation * rate for number, profile, rate in runs) / count / tabled[index]
    if index in measured:
        return Estimate(max(1, int(mean)), int(deviation), "history")
    return Estimate(max(1, int(mean)), max(int(deviation), int(mean * TABLE_VARIES)), "throughput table")


def _by_roofline(model: DeviceModel, precision: str, work: Work) -> Estimate | None:
    """The roofline bound (Williams et al., 2009): operations over peak rate or bytes over bandwidth, the larger.

    Most training reaches at best half of the bound (30-55 % of peak in public MLPerf submissions), so the bound is
    doubled, and the deviation equals the mean.
    """
    seconds = bound(model, precision, work)
    if not seconds:
        return None
    mean = int(2 * seconds * SECOND)
    return Estimate(max(1, mean), mean, "roofline")


def bound(model: DeviceModel, precision: str, work: Work) -> float:
    """Return the least seconds that a device needs for this work; 0 if nothing is known."""
    rate = _rate(model, precision)
    compute = work.flops / rate if work.flops and rate else 0.0
    transfer = work.bytes / model.bandwidth if work.bytes and model.bandwidth else 0.0
    return max(compute, transfer)


def _carried_over(model: DeviceModel, precision: str, measured: Mapping[DeviceModel, Profile]) -> Estimate | None:
    """Scale a run measured on another device by the geometric mean of the ratios of peak rate and of bandwidth: between
    compute-bound and bandwidth-bound work. The deviation equals the mean.
    """
    for other, profile in measured.items():
        ratio = _ratio(_rate(other, precision), _rate(model, precision)) * _ratio(other.bandwidth, model.bandwidth)
        if ratio != 1.0:
            mean = max(1, int(profile.mean * sqrt(ratio)))
            return Estimate(mean, mean, f"history on {other.called}, scaled")
    return None


def _rate(model: DeviceModel, precision: str) -> int:
    rates = dict(model.rates)
    runs_in = precision_on(model, precision or "fp32")
    return rates.get(runs_in or "", 0) or max(rates.values(), default=0)


def _ratio(over: int, under: int) -> float:
    return over / under if over and under else 1.0
