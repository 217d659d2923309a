"""Incidents: symptoms grouped by fingerprint, time and their lowest common cause.

    incidents = Incidents()
    for revision, event in log:
        incidents.take(revision, event)
    incidents.tick(now)

Symptoms wait until no new one has come for `SETTLES`, and at most `MOST_WAIT` after the first. Then causes are chosen
for all waiting and open symptoms: each time the element that explains most at the least cost, until chance explains the
rest better. The score is a likelihood. If an element fails, a share of the elements below it shows symptoms, and each
healthy sibling is evidence against it. The prior of an element is lower the more it contains.

An incident absorbs later symptoms that its cause explains. Its cause may widen: two nodes of a rack become the rack. It
closes when all its symptoms are over and no new one has come for `QUIET`.

Pure and derived: the same log gives the same incidents to every reader at any time. The log alone determines the
instant of each decision, however often `tick` is called.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, cast

import msgspec

from poise.errors import NotFound
from poise.kernel.symptoms import OF_OUTCOME, Acted, Ended, Facts, Healthy, Symptoms
from poise.model.device_codes import known
from poise.model.events import Event, IncidentTold
from poise.model.incidents import (
    Element,
    ElementKind,
    Entry,
    IncidentReport,
    Moment,
    Step,
    Suspect,
    Symptom,
    SymptomKind,
)
from poise.model.tenants import declared_class
from poise.units import MINUTE, SECOND

SETTLES, MOST_WAIT = 8 * SECOND, 20 * SECOND
"""A cause is chosen this long after the latest symptom, and at most this long after the first. With the delivery, a
notice arrives within 30 s.
"""

AGAIN, ATTEMPTS_WAIT = 10 * SECOND, 15 * SECOND
"""They replace `MOST_WAIT`. `AGAIN`: fleet symptoms without a cause wait already, as with a flapping node.
`ATTEMPTS_WAIT`: only attempts have ended badly, which some always do by chance.
"""

TOGETHER = 2 * MINUTE
"""A symptom without a cause waits this long for others. Symptoms of open incidents count for the same time."""

QUIET = 30 * SECOND
"""An incident closes when all its symptoms are over and no new one has come for this long."""

STALE = 30 * MINUTE
"""Symptoms without an end event are considered over if their incident has had no news for this long."""

MOST_ENTRIES, MOST_TOLD, MOST_NAMED = 100, 40, 20
"""Maximum entries of a timeline; maximum lines on actions; maximum names of nodes and of jobs in a report."""

MOST_INCIDENTS = 500
"""Maximum number of incidents retained; closed ones are removed first."""

MOST_SHOWN = 300
"""Maximum number of ended symptoms retained per incident; all are counted."""

MOST_WAITING = 4_000
"""Maximum number of badly ended attempts that wait for a cause."""

MOST_HEALTHY = 4_000
"""Maximum number of healthy attempts retained, for at most `TOGETHER`."""

EVIDENCE: dict[SymptomKind, float] = {
    "node-lost": 30.0, "node-silent": 4.0, "node-unfit": 30.0, "device-failed": 30.0,
    "straggling": 18.0, "member-differs": 18.0, "node-unusual": 16.0, "deadline-missed": 1.0,
    "objective-missed": 12.0, "rule-fired": 30.0, "budget-reached": 30.0, "new-template": 1.5,
    "slow-store": 30.0, "store-full": 30.0, "clock-step": 30.0, "control-restarted": 4.0, "policy-failed": 30.0,
}  # fmt: skip
"""Evidence of a symptom for a cause: the negative logarithm of its probability without one. For attempts that end badly
it is the negative logarithm of their share of all attempts.
"""

COST: dict[ElementKind, float] = {
    "device": 6.0, "node": 6.0, "rack": 5.0, "zone": 6.0, "network": 8.0,
    "control plane": 5.0, "store": 5.0, "clock": 5.0, "policy": 5.0,
    "service": 4.0, "program": 6.0, "job": 6.5, "user": 8.0, "budget": 4.0,
}  # fmt: skip
"""The negative logarithm of the probability that one element of a kind fails. The logarithm of the number of such
elements is added: among many, one looks bad by chance.
"""

WHOLE = 0.999
"""Share of the nodes of a rack, a zone or the network that is silent when it fails."""

MOST_DEVICES = 0.8
"""Share of the devices below a node, a rack or a zone that fails with it."""

BELOW: dict[ElementKind, tuple[ElementKind, ...]] = {
    "rack": ("node",),
    "zone": ("rack", "node"),
    "network": ("zone", "rack", "node"),
    "control plane": ("node",),
    "program": ("job",),
    "user": ("program", "job"),
}
"""Kinds of elements below an element. If only one of those is affected, it is the cause, or the cause lies below it."""

LEAST_SHARE = 0.75
"""A cause explains no attempts if a smaller share of the attempts that it affects ends badly."""

BEFORE = 10 * SECOND
"""Attempts end badly at most this long before the failure of their node or device is detected."""

MEMORY = 2_000
"""Number of attempts over which shares of endings are counted, with decay."""

WELL_AGAIN, SETBACK = 10, 3
"""Healthy attempts of a cause before it counts as recovered; each bad one takes `SETBACK` of them back."""

DOUBT = 1.0
"""Extra evidence for a cause that only attempts show, because the question is asked repeatedly."""

FEW_TRIES, FEW_BAD = 40.0, 1.0
"""Attempts, and attempts with each bad ending, assumed before any was seen."""

TIE = math.log(2.0)
"""Suspects whose likelihoods differ by less than a factor of two are tied."""

LASTING: frozenset[SymptomKind] = frozenset(
    (
        "node-lost", "node-silent", "node-unfit", "device-failed", "slow-store", "node-unusual", "member-differs",
        "objective-missed", "rule-fired", "budget-reached",
    )
)  # fmt: skip
"""Symptoms that last until an event ends them."""

OF_NODES: frozenset[SymptomKind] = frozenset(("node-lost", "node-silent", "node-unfit", "node-unusual"))
"""Symptoms of whole nodes: the siblings are nodes."""

LARGE: frozenset[ElementKind] = frozenset(("rack", "zone", "network"))
"""Causes for which missed objectives alone are no evidence: nothing shows how other services below them perform."""

WEAK: frozenset[SymptomKind] = frozenset(("new-template",))
"""Symptoms that join an incident but never open one."""

OF_ATTEMPTS: frozenset[SymptomKind] = frozenset(OF_OUTCOME.values())
"""Symptoms of attempts: the siblings are attempts that ended well in the same time."""


class _Incident(msgspec.Struct):
    """`shows` has the latest symptom of each retained fingerprint. `going` has those that are not over, with their
    instants. `well` counts healthy attempts of the cause since then.
    """

    id: str
    first: int
    opened: int
    last: int
    cause: Suspect
    tied: tuple[Suspect, ...]
    shows: dict[str, Symptom]
    going: dict[str, int]
    count: dict[str, int]
    timeline: list[Entry]
    done: list[Entry]
    evidence: tuple[str, ...]
    well: int = 0
    closed: int = 0
    part_of: str = ""
    told: dict[str, str] = {}


class State(msgspec.Struct):
    """All state derived from a log up to `revision`; reading can resume from it."""

    revision: int = 0
    now: int = 0
    facts: Facts = msgspec.field(default_factory=Facts)
    waiting: list[Symptom] = []
    looked: int = 0
    """Waiting symptoms up to this revision were examined without finding a cause."""
    over: dict[str, int] = {}
    """Waiting symptoms that are over, with the instant."""
    healthy: list[Healthy] = []
    tries: float = 0.0
    bad: dict[str, float] = {}
    """Attempts that ended, and those that ended badly by kind; both decay."""
    incidents: dict[str, _Incident] = {}


class Incidents:
    """The incidents of one log."""

    def __init__(self, state: State | None = None) -> None:
        self._state = state if state is not None else State()
        self._reader = Symptoms(self._state.facts)
        self._healthy: deque[Healthy] = deque(self._state.healthy, MOST_HEALTHY)
        self._fresh: dict[bool, tuple[int, int]] = {}
        """First and last instant of waiting symptoms not yet examined: by whether attempts show them."""
        self._is_again = False
        """Whether a fleet or control plane symptom waits that was already examined."""
        self._attempts_waiting = 0
        self._by_subject: dict[str, list[Symptom]] = {}
        """Waiting symptoms by subject: when a fleet comes back, each node ends some of thousands."""
        self._weigh()

    @property
    def revision(self) -> int:
        """Revision of the last event read."""
        return self._state.revision

    def state(self) -> State:
        """Return the state to save. It shares parts with this object: encode it before the next event."""
        self._state.healthy = list(self._healthy)
        return self._state

    # --- reading -----------------------------------------------------------------------------------------------------

    def take(self, revision: int, event: Event) -> None:
        """Read the next event."""
        self.tick(event.at)
        self._state.revision = revision
        for reading in self._reader.read(revision, event):
            match reading:
                case Symptom():
                    self._symptom(reading)
                case Healthy():
                    self._tried("")
                    self._healthy.append(reading)
                    for incident in self._open():
                        if incident.cause.element in reading.elements:
                            incident.well += 1
                case Ended():
                    self._ended(reading)
                case Acted():
                    self._acted(reading)
                case IncidentTold():
                    if (told := self._state.incidents.get(reading.incident)) is not None:
                        told.told[told_key(reading.moment, reading.target)] = reading.failed

    def tick(self, now: int) -> None:
        """Take all decisions that are due up to the instant `now`."""
        while (due := self.due()) is not None and due <= now:
            self._state.now = max(self._state.now, due)
            self._look(due)
            self._close(due)
        self._state.now = max(self._state.now, now)

    def due(self) -> int | None:
        """Return the next instant at which something may change without an event."""
        times = [self._closes(of) for of in self._open()]
        if (looks := self._looks()) is not None:
            times.append(looks)
        return min(times, default=None)

    def _looks(self) -> int | None:
        """Return when causes are chosen next. Symptoms of the fleet or the control plane set the time, if there are
        any.
        """
        if (fresh := self._fresh.get(False)) is not None:
            return min(fresh[1] + SETTLES, fresh[0] + (AGAIN if self._is_again else MOST_WAIT))
        if (fresh := self._fresh.get(True)) is not None:
            return min(fresh[1] + SETTLES, fresh[0] + ATTEMPTS_WAIT)
        return None

    def _weigh(self) -> None:
        """Rebuild the counters and the index of waiting symptoms."""
        self._fresh.clear()
        self._by_subject.clear()
        self._attempts_waiting, self._is_again = 0, False
        for symptom in self._state.waiting:
            self._waits(symptom)

    def _waits(self, symptom: Symptom) -> None:
        self._by_subject.setdefault(symptom.subject, []).append(symptom)
        self._attempts_waiting += symptom.kind in OF_ATTEMPTS
        by_attempts = symptom.kind in OF_ATTEMPTS | WEAK
        if symptom.revision > self._state.looked:
            first, _ = self._fresh.get(by_attempts, (symptom.at, 0))
            self._fresh[by_attempts] = first, symptom.at
        elif not by_attempts:
            self._is_again = True

    def _thin(self) -> None:
        """Drop attempts if too many wait. The first and the latest of those not yet examined stay."""
        state = self._state
        fresh = [of for of in state.waiting if of.kind in OF_ATTEMPTS and of.revision > state.looked]
        some = MOST_WAITING // 4
        kept = {id(of) for of in (*fresh[:some], *fresh[-some:])}
        state.waiting = [of for of in state.waiting if of.kind not in OF_ATTEMPTS or id(of) in kept]
        self._weigh()

    def _open(self) -> list[_Incident]:
        return [of for of in self._state.incidents.values() if not of.closed]

    def _tried(self, kind: str) -> None:
        """Count an ended attempt; `kind` is empty if it ended well."""
        state, keeps = self._state, 1.0 - 1.0 / MEMORY
        state.tries = state.tries * keeps + 1.0
        state.bad = {name: count * keeps for name, count in state.bad.items()}
        if kind:
            state.bad[kind] = state.bad.get(kind, 0.0) + 1.0

    def _symptom(self, symptom: Symptom) -> None:
        if symptom.kind in OF_ATTEMPTS:
            self._tried(symptom.kind)
        for incident in self._open():
            if incident.cause.element in symptom.suspects and _absorbs(incident, symptom):
                _fold(incident, symptom)
                return
        self._state.waiting.append(symptom)
        self._waits(symptom)
        if self._attempts_waiting > MOST_WAITING:
            self._thin()

    def _ended(self, ended: Ended) -> None:
        keys = [f"{kind} {ended.subject}" for kind in ([ended.kind] if ended.kind else sorted(LASTING))]
        waiting = self._by_subject.get(ended.subject, ())
        self._state.over |= {_key(of): ended.at for of in waiting if ended.kind in ("", of.kind)}
        for incident in self._open():
            over = [key for key in keys if key in incident.going]
            for key in over:
                del incident.going[key]
            if over:
                incident.last = max(incident.last, ended.at)
                _note(incident.timeline, Entry(ended.at, ended.revision, ended.text), MOST_ENTRIES)

    def _acted(self, acted: Acted) -> None:
        for incident in self._open():
            if any(_concerns(acted.subject, symptom) for symptom in incident.shows.values()):
                _note(incident.done, Entry(acted.at, acted.revision, acted.text), MOST_TOLD)

    # --- causes ------------------------------------------------------------------------------------------------------

    def _look(self, now: int) -> None:
        """Choose causes for the waiting symptoms together with those of open incidents."""
        state = self._state
        looks = self._looks()
        if looks is None or now < looks:
            return
        fresh = [symptom for symptom in state.waiting if symptom.revision > state.looked]
        state.waiting = [symptom for symptom in state.waiting if symptom.at > now - TOGETHER]
        state.over = {key: at for key, at in state.over.items() if at > now - TOGETHER}
        state.looked = fresh[-1].revision
        recent = [
            symptom
            for of in self._open()
            for key, symptom in of.shows.items()
            if key in of.going or symptom.at > now - TOGETHER
        ]
        judge = _Judge([*state.waiting, *recent], self._healthy, self._reader, self._evidence())
        for suspect, tied, explained, evidence in judge.causes():
            if {_key(symptom) for symptom in explained} & {_key(symptom) for symptom in state.waiting}:
                self._explain(suspect, tied, explained, evidence, now)
        self._weigh()

    def _evidence(self) -> dict[SymptomKind, float]:
        """Return the evidence of each kind of symptom; for attempts it depends on their share so far."""
        state = self._state
        tries = state.tries + FEW_TRIES
        return EVIDENCE | {kind: math.log(tries / (state.bad.get(kind, 0.0) + FEW_BAD)) for kind in sorted(OF_ATTEMPTS)}

    def _explain(
        self, cause: Suspect, tied: tuple[Suspect, ...], explained: list[Symptom], evidence: tuple[str, ...], now: int
    ) -> None:
        """Open an incident for these symptoms, or widen the oldest that has some of them."""
        state = self._state
        keys = {_key(symptom) for symptom in explained}
        touched = [of for of in self._open() if keys & of.shows.keys() or of.cause.element == cause.element]
        news = [of for of in state.waiting if _key(of) in keys]
        state.waiting = [of for of in state.waiting if _key(of) not in keys]
        if touched:
            incident, *others = touched
            for other in others:
                _merge(incident, other, now)
            if incident.cause.element != cause.element:
                text = f"suspected cause: {cause.element}, before: {incident.cause.element}"
                _note(incident.timeline, Entry(now, state.revision, text), MOST_ENTRIES)
        else:
            first = min([*explained, *news], key=lambda of: of.revision)
            incident = _Incident(
                id=f"i{first.revision}",
                first=first.at,
                opened=now,
                last=first.at,
                cause=cause,
                tied=tied,
                shows={},
                going={},
                count={},
                timeline=[],
                done=[],
                evidence=evidence,
            )
            self._keep(incident)
        incident.cause, incident.tied, incident.evidence = cause, tied, evidence
        for symptom in news:
            _fold(incident, symptom)
            key = _key(symptom)
            if state.over.pop(key, 0) > symptom.at:
                incident.going.pop(key, None)

    def _keep(self, incident: _Incident) -> None:
        incidents = self._state.incidents
        incidents[incident.id] = incident
        while len(incidents) > MOST_INCIDENTS:
            closed = next((of.id for of in incidents.values() if of.closed), next(iter(incidents)))
            del incidents[closed]

    def _closes(self, incident: _Incident) -> int:
        """Return the instant at which it closes if nothing more happens."""
        return max(incident.last + (STALE if incident.going else QUIET), incident.opened)

    def _close(self, now: int) -> None:
        for incident in self._open():
            if self._closes(incident) <= now:
                incident.closed = now
                _note(incident.timeline, Entry(now, self._state.revision, "closed"), MOST_ENTRIES)

    # --- telling -----------------------------------------------------------------------------------------------------

    def untold(self, targets: Iterable[str], since: int) -> Iterator[tuple[str, Moment, str]]:
        """Yield incident, moment and target of each pending notice, for incidents that opened after an instant: for
        these targets, and for those of the incident's symptoms. For an incident merged into another one, only the
        opening is reported.
        """
        for incident in self._state.incidents.values():
            closed = incident.closed and not incident.part_of
            moments: tuple[Moment, ...] = ("opened", "closed") if closed else ("opened",)
            own = (target for symptom in incident.shows.values() for target in symptom.targets)
            for target in dict.fromkeys((*targets, *own)) if incident.opened > since else ():
                moment = next((of for of in moments if told_key(of, target) not in incident.told), None)
                if moment is not None:
                    yield incident.id, moment, target

    def ids(self) -> list[str]:
        """Return the ids of all retained incidents, oldest first."""
        return list(self._state.incidents)

    def going(self, kind: SymptomKind) -> list[str]:
        """Return the subjects of current symptoms of a kind."""
        shown = [of.shows[key] for of in self._open() for key in of.going]
        waiting = [of for of in self._state.waiting if self._state.over.get(_key(of), -1) < of.at]
        return list(dict.fromkeys(of.subject for of in (*shown, *waiting) if of.kind == kind))

    def attempts(self, incident_id: str) -> list[str]:
        """Return the tasks with badly ended attempts in an incident. Raises NotFound."""
        incident = self._state.incidents.get(incident_id)
        if incident is None:
            raise no_such_incident(incident_id)
        return [of.subject for of in incident.shows.values() if of.kind in OF_ATTEMPTS]

    def report(self, incident_id: str, wall: Callable[[int], float]) -> IncidentReport:
        """Report one incident; `wall` converts an instant to seconds since 1970. Raises NotFound."""
        incident = self._state.incidents.get(incident_id)
        if incident is None:
            raise no_such_incident(incident_id)
        nodes, jobs = affected(incident.shows.values())
        done = [entry.text for entry in incident.done]
        return IncidentReport(
            id=incident.id,
            title=_title(incident.cause, incident.count, len(nodes), len(jobs)),
            opened=wall(incident.first),
            last=wall(incident.last),
            closed=wall(incident.closed) if incident.closed else 0.0,
            cause=incident.cause,
            tied=incident.tied,
            symptoms=dict(incident.count),
            nodes=tuple(nodes[:MOST_NAMED]),
            jobs=tuple(jobs[:MOST_NAMED]),
            more_nodes=max(0, len(nodes) - MOST_NAMED),
            more_jobs=max(0, len(jobs) - MOST_NAMED),
            timeline=tuple(Step(at=wall(of.at), revision=of.revision, text=of.text) for of in incident.timeline),
            evidence=incident.evidence,
            done=tuple(dict.fromkeys(done)),
            hint=_hint(incident),
            undelivered={key: why for key, why in incident.told.items() if why},
        )


class _Explained(NamedTuple):
    """The symptoms that an element explains, the gain over chance as a log-likelihood, and the reasons in sentences.
    `worth` is the share of the evidence left after the costs.
    """

    gain: float
    worth: float
    symptoms: list[Symptom]
    why: tuple[str, ...] = ()


class _Judge:
    """Chooses the causes of some symptoms."""

    def __init__(
        self,
        symptoms: list[Symptom],
        healthy: Iterable[Healthy],
        reader: Symptoms,
        evidence: Mapping[SymptomKind, float],
    ) -> None:
        self._symptoms = list({_key(symptom): symptom for symptom in symptoms}.values())
        self._seen = Counter(map(_key, symptoms))
        self._reader = reader
        self._evidence = evidence
        self._any_bad = -math.log(math.fsum(math.exp(-evidence[kind]) for kind in sorted(OF_ATTEMPTS)))
        self._count = reader.count()
        first = min((symptom.at for symptom in self._symptoms), default=0)
        self._healthy: dict[Element, list[int]] = {}
        for one in healthy:
            if one.at >= first:
                for element in one.elements:
                    self._healthy.setdefault(element, []).append(one.at)
        self._of: dict[Element, list[Symptom]] = {}
        for symptom in self._symptoms:
            for element in symptom.suspects:
                self._of.setdefault(element, []).append(symptom)

    def causes(self) -> Iterator[tuple[Suspect, tuple[Suspect, ...], list[Symptom], tuple[str, ...]]]:
        """Yield each cause with the suspects tied with it, the symptoms it explains, and the reasons; the strongest
        first.
        """
        left = {_key(symptom) for symptom in self._symptoms}
        while left:
            found = {element: self._explain(element, left) for element in self._of}
            best = max(found, key=lambda element: (found[element].worth, element))
            gain, _, explained, why = found[best]
            if gain <= 0:
                return
            keys = {_key(symptom) for symptom in explained}
            rivals = {element: min(700.0, self._explain(element, keys).gain) for element in self._of}
            total = 1.0 + math.fsum(math.exp(of) for of in rivals.values())
            scored = [
                Suspect(kind=element.kind, name=element.name, score=round(math.exp(of) / total, 3))
                for element, of in sorted(rivals.items(), key=lambda of: (-of[1], of[0]))
                if rivals[best] - of < TIE or element == best
            ]
            cause = next(suspect for suspect in scored if suspect.element == best)
            tied = tuple(suspect for suspect in scored if suspect != cause)
            yield cause, tied, explained, (f"explains {len(explained)} of {len(self._symptoms)} symptoms", *why)
            left -= keys

    def _explain(self, element: Element, left: set[str]) -> _Explained:
        """Return the log-likelihood gain of the remaining symptoms with this cause over none."""
        mine = [symptom for symptom in self._of[element] if _key(symptom) in left]
        if not mine:
            return _Explained(-math.inf, -math.inf, [])
        of_kind = self._count.get(element.kind, 1)
        gain = -COST[element.kind] - math.log(max(1, of_kind))
        explained = [symptom for symptom in mine if symptom.kind not in OF_ATTEMPTS]
        weight = math.fsum(map(self._weight, explained))
        gain += weight
        why = []
        nodes = {symptom.subject for symptom in explained if symptom.kind in OF_NODES}
        if nodes and element.kind != "node":
            well = sum(name not in nodes for name in self._reader.under(element))
            gain += len(nodes) * math.log(WHOLE) + well * math.log(1.0 - WHOLE)
            why.append(f"{len(nodes)} of {len(nodes) + well} nodes are affected")
        devices = {symptom.subject for symptom in explained if symptom.kind == "device-failed"}
        if devices and element.kind != "device":
            there = sum(map(self._reader.devices_of, self._reader.under(element)))
            well = max(0, there - len(devices))
            gain += len(devices) * math.log(MOST_DEVICES) + well * math.log(1.0 - MOST_DEVICES)
            why.append(f"{len(devices)} of {len(devices) + well} devices are affected")
        since = min((symptom.at for symptom in explained), default=BEFORE) - BEFORE
        attempts = self._attempts(element, [of for of in mine if of.kind in OF_ATTEMPTS and of.at >= since])
        if attempts.gain > 0:
            gain += attempts.gain
            weight += attempts.gain / attempts.worth
            explained += attempts.symptoms
            why += attempts.why
        kinds = {symptom.kind for symptom in explained} - WEAK
        if kinds <= OF_ATTEMPTS:
            gain -= DOUBT
        alone = not kinds or (element.kind in LARGE and kinds == {"objective-missed"})
        if not weight or alone or _has_lower(element, explained):
            return _Explained(-math.inf, -math.inf, [])
        return _Explained(gain, gain / weight, explained, tuple(why))

    def _attempts(self, element: Element, bad: list[Symptom]) -> _Explained:
        """Find the instant since which an element best explains bad attempts. The choice among many instants costs the
        logarithm of their number.
        """
        well = self._healthy.get(element, [])
        best, weight = _Explained(0.0, 0.0, []), 0.0
        bad = sorted(bad, key=lambda symptom: symptom.revision)
        kinds: set[SymptomKind] = set()
        repeats = 0.0
        for number in range(len(bad) - 1, -1, -1):
            kinds.add(bad[number].kind)
            repeats += self._repeats(bad[number])
            weight = repeats * (self._evidence[bad[number].kind] if len(kinds) == 1 else self._any_bad)
            failed, ended = len(bad) - number, len(well) - bisect_left(well, bad[number].at)
            share = (failed + 0.5) / (failed + ended + 1.0)
            if share < LEAST_SHARE:
                continue
            gain = weight + failed * math.log(share) + ended * math.log(1.0 - share) - math.log(len(bad))
            if gain > best.gain:
                why = f"{failed} of {failed + ended} attempts ended badly"
                best = _Explained(gain, gain / weight, bad[number:], (why,))
        return best

    def _weight(self, symptom: Symptom) -> float:
        """Return its evidence; each repetition adds half of it, up to three."""
        return self._evidence[symptom.kind] * self._repeats(symptom)

    def _repeats(self, symptom: Symptom) -> float:
        return 1.0 + 0.5 * min(3, self._seen[_key(symptom)] - 1)


def _has_lower(element: Element, explained: Iterable[Symptom]) -> bool:
    """Return whether a single element below it explains the same."""
    suspects = {suspect for symptom in explained for suspect in symptom.suspects}
    for kind in BELOW.get(element.kind, ()):
        if found := sum(suspect.kind == kind for suspect in suspects):
            return found == 1
    return False


def no_such_incident(name: str) -> NotFound:
    """Return the error for an incident that does not exist or that the caller may not see."""
    return NotFound("there is no such incident", field="incident", have=name, hint="`poise incidents`")


def told_key(moment: Moment, target: str) -> str:
    """Return the key that distinguishes the notices of one incident."""
    return f"{moment} {target}"


def affected(symptoms: Iterable[Symptom]) -> tuple[list[str], list[str]]:
    """Return the nodes and jobs that symptoms concern, in order."""
    nodes: dict[str, None] = {}
    jobs: dict[str, None] = {}
    for symptom in symptoms:
        if symptom.kind == "objective-missed":  # its suspects are all its replicas
            continue
        on = next((element.name for element in symptom.suspects if element.kind == "node"), "")
        if on:
            nodes[on] = None
        job = symptom.subject.partition(".")[0] if symptom.kind not in OF_NODES else ""
        if job and job[0] == "j" and job[1:].isdecimal():
            jobs[job] = None
    return list(nodes), list(jobs)


def _key(symptom: Symptom) -> str:
    return f"{symptom.kind} {symptom.subject}"


def _concerns(subject: str, symptom: Symptom) -> bool:
    """Return whether an action on `subject` concerns the subject of a symptom."""
    return symptom.subject == subject or (subject.startswith("j") and symptom.subject.startswith(f"{subject}"))


def _absorbs(incident: _Incident, symptom: Symptom) -> bool:
    """Return whether an open incident explains a symptom of its cause. Badly ended attempts count only if the incident
    has such symptoms and its cause has not recovered.
    """
    if symptom.kind not in OF_ATTEMPTS or symptom.kind == "attempt-lost":
        return True
    return incident.well < WELL_AGAIN and any(of.kind in OF_ATTEMPTS for of in incident.shows.values())


def _fold(incident: _Incident, symptom: Symptom) -> None:
    key = _key(symptom)
    incident.shows[key] = symptom
    incident.count[symptom.kind] = incident.count.get(symptom.kind, 0) + 1
    incident.last = max(incident.last, symptom.at)
    if symptom.kind in OF_ATTEMPTS:
        incident.well = max(0, incident.well - SETBACK)
    if symptom.kind in LASTING:
        incident.going[key] = symptom.at
    if symptom.kind == "node-lost":
        incident.going.pop(f"node-silent {symptom.subject}", None)
    _note(incident.timeline, Entry(symptom.at, symptom.revision, symptom.text), MOST_ENTRIES)
    if len(incident.shows) - len(incident.going) > MOST_SHOWN:
        over = [key for key in incident.shows if key not in incident.going]
        for key in over[: -MOST_SHOWN // 2]:
            del incident.shows[key]


def _merge(incident: _Incident, other: _Incident, now: int) -> None:
    """Merge another incident into this one."""
    incident.shows |= other.shows
    incident.going |= other.going
    incident.last = max(incident.last, other.last)
    incident.count = dict(Counter(incident.count) + Counter(other.count))
    incident.timeline = sorted([*incident.timeline, *other.timeline], key=lambda of: of.revision)[:MOST_ENTRIES]
    incident.done = sorted([*incident.done, *other.done], key=lambda of: of.revision)[:MOST_TOLD]
    other.closed, other.part_of = now, incident.id
    other.going = {}


def _note(entries: list[Entry], entry: Entry, most: int) -> None:
    """Append an entry; above the limit, retain the first half and the latest of the rest."""
    entries.append(entry)
    if len(entries) > most:
        del entries[most // 2]


def _title(cause: Suspect, count: Mapping[str, int], nodes: int, jobs: int) -> str:
    """Return the title: the cause, its heaviest symptom, and the numbers of affected nodes and jobs."""
    worst = max(count, key=lambda kind: (EVIDENCE.get(cast(SymptomKind, kind), 2.0), kind), default="symptom")
    reach = [f"{many} {name}{'s' if many > 1 else ''}" for many, name in ((nodes, "node"), (jobs, "job")) if many]
    return f"{cause.element}: {worst.replace('-', ' ')}" + (f" ({', '.join(reach)})" if reach else "")


def _hint(incident: _Incident) -> str:
    """Return the command to type next."""
    name = incident.cause.name
    match incident.cause.kind:
        case "network":
            return "check the network between the nodes and the control plane: `poise nodes`"
        case "zone" | "rack":
            return f"check power and switches of {incident.cause.element}: `poise nodes`"
        case "node":
            return f"check the machine, and close it until it is well: `poise drain {name}`"
        case "device":
            texts = (symptom.text for symptom in incident.shows.values() if symptom.kind == "device-failed")
            advice = next((code.advice for text in texts if (code := known(text)) is not None), "check the device")
            return f"{advice}; then open it: `poise drain {name} --undo`"
        case "store":
            return "check the disk of the log: `poise doctor`"
        case "clock":
            return "check time synchronization: `timedatectl`"
        case "control plane":
            return "read its messages: `poise doctor`"
        case "policy":
            return "set a policy that works: `poise policy set poise`"
        case "service":
            return f"compare its latency with its load and its replicas: `poise services {declared_class(name)}`"
        case "budget":
            return "compare the amounts: `poise usage --budgets`"
        case "user" | "program" | "job":
            jobs = affected(incident.shows.values())[1]
            return f"read the output: `poise logs {jobs[0]}`" if jobs else "`poise ls`"
