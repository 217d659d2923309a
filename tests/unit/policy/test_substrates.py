"""The work that waits, distributed over several clusters: cases computed by hand, and what holds for all."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise.drivers.delays import Delays
from poise.model.reports.demand import Demand, Opening, Quote
from poise.policy.substrates import HERE, MARGIN, PART, Share, split
from poise.units import HOUR, MINUTE, SECOND

CLUSTERS = ("kubernetes", "slurm", HERE)


def work(tasks: int, run: int, *, together: int = 1, key: str = "a", unknown: int = 0) -> Demand:
    return Demand(
        tasks=tasks,
        together=together,
        cpu=1000,
        memory=0,
        gpus=0,
        where="",
        work=(tasks - unknown) * run,
        longest=2 * run,
        unknown=unknown,
        key=key,
    )


def room(slots: int, delay: int, *, asked: bool = False) -> Opening:
    return Opening(slots=slots, delay=delay, late=2 * delay, asked=asked)


def offers(**of: Opening | tuple[Opening, ...] | str) -> dict[str, dict[str, Quote]]:
    """Quotes for the kind `a`, by substrate: openings, or the reason for none."""
    quotes = {}
    for name, told in of.items():
        openings = () if isinstance(told, str) else told if isinstance(told, tuple) else (told,)
        why = told if isinstance(told, str) else ""
        quotes[HERE if name == "here" else name] = {"a": Quote(key="a", openings=openings, why=why)}
    return quotes


def one(demand: Demand, **of: Opening | tuple[Opening, ...] | str) -> Share:
    [share] = split([demand], offers(**of))
    return share


def test_a_task_goes_where_it_is_expected_to_end_first_and_the_others_are_told() -> None:
    share = one(work(1, MINUTE), kubernetes=room(4, 20 * SECOND), slurm=room(64, 40 * MINUTE), ray="it is full")
    assert (share.tasks, share.left) == ({"kubernetes": 1}, 0)
    first, ray, slurm = share.prospects
    assert (first.substrate, first.chosen, first.start, first.end) == ("kubernetes", True, 20 * SECOND, 80 * SECOND)
    assert first.sentence() == "expected to start in 20.0 s (P90: 40.0 s) and to end in 1m20s"
    assert (ray.chosen, ray.sentence()) == (False, "it is full")
    assert (slurm.chosen, slurm.start, slurm.late, slurm.end) == (False, 40 * MINUTE, 80 * MINUTE, 41 * MINUTE)


def test_a_large_campaign_is_shared_so_that_its_parts_end_at_the_same_time() -> None:
    """Four at once from 0 s on and ten from 60 s on, 30 s each: after 150 s 4 x 5 and 10 x 3 have ended."""
    share = one(work(50, 30 * SECOND), kubernetes=room(4, 0), slurm=room(10, MINUTE))
    assert share.tasks == {"kubernetes": 20, "slurm": 30}
    assert [one.end for one in share.prospects] == [150 * SECOND] * 2


def test_nothing_is_asked_for_where_nodes_that_are_there_end_it_sooner() -> None:
    assert one(work(2, 10 * SECOND), here=room(2, 5 * SECOND, asked=True), slurm=room(8, MINUTE)).tasks == {HERE: 2}
    assert one(work(2, 10 * SECOND), here=room(2, HOUR, asked=True), slurm=room(8, MINUTE)).tasks == {"slurm": 2}


def test_a_gang_goes_to_one_cluster_as_a_whole() -> None:
    gang = work(8, MINUTE, together=4)
    assert one(gang, kubernetes=room(3, 0), slurm=room(8, MINUTE)).tasks == {"slurm": 8}
    assert one(gang, kubernetes=(room(3, 0), room(1, SECOND)), slurm=room(4, MINUTE)).tasks["kubernetes"] % 4 == 0
    share = one(gang, kubernetes=room(3, 0))
    assert (share.tasks, share.left) == ({}, 8)
    assert share.prospects[0].why == "it has no room for 4 tasks at once"


def test_machines_that_are_requested_are_kept_unless_others_are_earlier_by_a_margin() -> None:
    requested = room(1, 40 * SECOND, asked=True)
    margin = MARGIN + requested.delay // PART
    just = requested.delay - margin
    assert one(work(1, MINUTE), slurm=requested, kubernetes=room(1, just + 1)).tasks == {"slurm": 1}
    assert one(work(1, MINUTE), slurm=requested, kubernetes=room(1, just - 1)).tasks == {"kubernetes": 1}


def test_work_that_is_served_first_delays_the_next_and_leaves_what_it_does_not_use() -> None:
    quotes = {
        name: {key: Quote(key=key, openings=(room(slots, delay),)) for key in "ab"}
        for name, slots, delay in (("kubernetes", 4, 0), ("slurm", 4, 15 * MINUTE))
    }
    first, second = split([work(2, 10 * MINUTE), work(2, MINUTE, key="b")], quotes)
    assert (first.tasks, second.tasks) == ({"kubernetes": 2}, {"kubernetes": 2})
    assert second.prospects[0].start == 0
    first, second = split([work(8, 10 * MINUTE), work(2, MINUTE, key="b")], quotes)
    assert (first.tasks, second.tasks) == ({"kubernetes": 8}, {"slurm": 2})


def test_an_unknown_run_time_is_guessed_and_the_part_of_a_cluster_keeps_the_proportions() -> None:
    share = one(work(4, 0, unknown=4), kubernetes=room(2, 0), slurm=room(2, 0))
    part = share.of("slurm")
    assert part is not None
    assert (part.tasks, part.unknown, part.work) == (2, 2, 0)
    assert share.of("ray") is None


def openings() -> st.SearchStrategy[tuple[Opening, ...]]:
    each = st.builds(room, st.integers(0, 20), st.integers(0, 3600).map(lambda of: of * SECOND), asked=st.booleans())
    return st.lists(each, max_size=3).map(tuple)


def quotes_of(openings: Mapping[tuple[str, str], tuple[Opening, ...]]) -> dict[str, dict[str, Quote]]:
    found: dict[str, dict[str, Quote]] = {}
    for (substrate, key), of in openings.items():
        found.setdefault(substrate, {})[key] = Quote(key=key, openings=of)
    return found


DEMANDS = st.tuples(
    *(
        st.builds(work, st.integers(1, 300), st.integers(1, 600).map(lambda of: of * SECOND),
                  together=st.integers(1, 6), key=st.just(key))
        for key in "ab"
    )
)  # fmt: skip
OFFERS = st.fixed_dictionaries({(substrate, key): openings() for substrate in CLUSTERS for key in "ab"})


@given(DEMANDS, OFFERS)
def test_each_task_goes_to_one_cluster_and_none_waits_where_there_is_room(
    demands: tuple[Demand, ...], openings: dict[tuple[str, str], tuple[Opening, ...]]
) -> None:
    for share in split(demands, quotes_of(openings)):
        demand = share.demand
        assert sum(share.tasks.values()) + share.left == demand.tasks
        rooms = {name: sum(of.slots for of in openings[name, demand.key]) for name in CLUSTERS}
        fits = any(slots >= demand.together for slots in rooms.values())
        assert share.left == (0 if fits else demand.tasks)
        for name, tasks in share.tasks.items():
            assert tasks > 0
            assert rooms[name] >= demand.together
        whole = [tasks % demand.together for tasks in share.tasks.values() if tasks % demand.together]
        assert len(whole) <= (1 if demand.tasks % demand.together else 0), "gangs are whole"
        chosen = {of.substrate for of in share.prospects if of.chosen}
        assert chosen == set(share.tasks)
    assert split(demands, quotes_of(openings)) == split(demands, quotes_of(openings))


@given(
    st.integers(1, 200), st.integers(1, 600), st.integers(1, 20), st.integers(1, 3600), st.integers(1, 20),
    st.integers(0, 3600), st.integers(1, 3600),
)  # fmt: skip
def test_a_cluster_that_is_earlier_gets_no_less_and_the_work_ends_no_later(
    tasks: int, run: int, slots: int, delay: int, other: int, theirs: int, earlier: int
) -> None:
    demand = work(tasks, run * SECOND)
    late = one(demand, slurm=room(slots, delay * SECOND), kubernetes=room(other, theirs * SECOND))
    soon = one(demand, slurm=room(slots, max(0, delay - earlier) * SECOND), kubernetes=room(other, theirs * SECOND))
    assert soon.tasks.get("slurm", 0) >= late.tasks.get("slurm", 0)

    def last(share: Share) -> int:
        return max(of.end for of in share.prospects if of.chosen)

    assert last(soon) <= last(late)


class Cluster:
    """A cluster of at most `slots` machines for one task each, which come after `delay` seconds. It learns that."""

    def __init__(self, slots: int, delay: int) -> None:
        self.slots, self.delay = slots, delay
        self.delays = Delays()
        self.requested: list[int] = []  # and when
        self.ends: list[int] = []  # of machines: when their work has ended
        self.gone = False

    def quote(self, now: int) -> Quote:
        openings = [room(1, max(0, end - now) * SECOND, asked=True) for end in self.ends]
        delays = [self.delays.of("", 20, now - at) for at in self.requested]
        openings += [room(1, delay.expected, asked=True) for delay in delays]
        if new := self.slots - len(openings):
            openings.append(room(new, max([self.delays.of("", 20), *delays]).expected))
        return Quote(key="a", openings=tuple(openings))

    def want(self, tasks: int, now: int) -> None:
        """Request what is missing for its share, and withdraw what is not needed."""
        more = min(tasks, self.slots) - len(self.ends) - len(self.requested)
        self.requested += [now] * max(0, more)
        idle = sum(end <= now for end in self.ends)
        for at in self.requested[max(0, tasks - idle) :]:
            self.requested.remove(at)
            self.delays.give_up("", 20, now - at)

    def step(self, now: int) -> None:
        come = [at for at in self.requested if now - at >= self.delay]
        for at in come:
            self.requested.remove(at)
            self.ends.append(now)
            self.delays.add("", now - at)


@pytest.mark.parametrize("seed", range(12))
def test_all_work_ends_and_no_task_is_requested_twice_though_delays_are_guessed_and_a_cluster_goes(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 — not a secret
    clusters = {name: Cluster(draw.randint(2, 12), draw.choice([1, 5, 30, 300, 1000])) for name in ("a", "b", "c")}
    runs, waits, ended, now = draw.choice([5, 60, 300]), draw.randint(1, 60), 0, 0
    total, dies = waits, draw.randint(0, 1000)
    while ended < total:
        now += 1
        assert now < 10_000, "work is starved"
        if now == dies:
            gone = clusters.pop(draw.choice("abc"))
            lost = sum(end > now for end in gone.ends)  # they start again
            waits, ended = waits + lost, ended - lost
        for cluster in clusters.values():
            cluster.step(now)
            free = [number for number, end in enumerate(cluster.ends) if end <= now]
            for number in free[:waits]:
                cluster.ends[number] = now + runs
            started = min(waits, len(free))
            waits, ended = waits - started, ended + started
        quotes = {name: {"a": cluster.quote(now)} for name, cluster in clusters.items()}
        [share] = split([work(waits, runs * SECOND)], quotes) if waits else [None]
        for name, cluster in clusters.items():
            cluster.want(share.tasks.get(name, 0) if share is not None else 0, now)
        assert sum(len(cluster.requested) for cluster in clusters.values()) <= waits
