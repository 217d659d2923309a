"""Recurring work on a running Poise: a schedule keeps a control plane up, and survives its kill."""

from functools import partial

from poise.client import Client
from system.living import Living, kill, until


def goes_on(client: Client, turns: int) -> bool:
    return client.schedules()[0].jobs >= turns


def test_a_killed_control_plane_submits_each_turn_once_and_one_without_schedules_leaves(living: Living) -> None:
    schedule = living.poise("submit", "--name", "beat", "--every", "1s", "--overlap", "allow", "-q", "--", "true")
    assert schedule.text == "s1\n"
    client = living.client()
    until(lambda: [job.name for job in client.jobs()], "the first turn is now")
    for turns in (2, 4):
        kill(living.pid("control"))
        until(partial(goes_on, client, turns), "turns go on")
    assert living.poise("schedules", "hold", "beat", "--json").value == {"held": ["s1"]}
    [beat] = living.poise("schedules", "--json").value
    names = [job.name for job in client.jobs(everything=True)]
    assert names == [f"beat-{number}" for number in range(1, beat["jobs"] + 1)]
    assert living.poise("schedules", "rm", "beat", "--json").value == {"removed": ["s1"]}
    until(lambda: not living.pid("supervisor"), "nothing keeps it up any more")
    assert living.poise("schedules", "--json").value == []
