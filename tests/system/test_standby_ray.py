"""Two control planes on one Ray cluster: the machines are kept by the one that leads, and go over when it is gone."""

import shutil
from collections.abc import Iterator

import pytest
from drivers.postgres_server import running
from needed import needs

from poise.client import Client
from poise.config import Address, Home
from poise.drivers.authority import ensure_authority
from poise.drivers.lock import holder
from poise.drivers.reach import fingerprint
from poise.drivers.security import ensure_token
from system.living import PATIENCE, Living, free_port, kill, until
from system.onray import NODES, OnRay

needs("ray", "ray")


@pytest.fixture
def pair() -> Iterator[tuple[OnRay, Living]]:
    """A cluster on which the first one leads, and the second one, which stands by."""
    first, second = Living(), Living()
    with running() as server:
        ensure_token(first.home)
        authority = fingerprint(ensure_authority(first.home))
        shutil.copytree(first.home.root, second.home.root)
        ports = [free_port(), free_port()]
        addresses = tuple(Address("127.0.0.1", port, authority) for port in ports)
        for living in (first, second):
            living.home = Home(living.home.root, others=(living.home.socket, *addresses))
            living.variables["POISE_CONTROL"] = ",".join([str(living.home.socket), *(one.text for one in addresses)])
        try:
            store = ("--store", server.database())
            on_ray = OnRay(first, None, *store, listen=str(addresses[0]))
            more = {**on_ray.token, "POISE_HOME": str(second.home.root)}
            done = second.poise(
                "up", "--port", "0", "--on", f"ray:{on_ray.address}", "--listen", str(addresses[1]), *store, **more
            )
            assert done.code == 0, done.err
            yield on_ray, second
            assert second.poise("down", "--cancel").code == 0
            until(lambda: set(on_ray.free().values()) == {2.0}, "all is given back", second.messages)
            on_ray.close()
            for living in (first, second):
                living.close()
        finally:
            for living in (first, second):
                living.destroy()


@pytest.mark.slow
def test_the_machines_of_a_cluster_go_over_to_the_one_that_leads(pair: tuple[OnRay, Living]) -> None:
    on_ray, second = pair
    first = on_ray.living
    held = first.work / "held"
    job = on_ray.submit(f"echo begun; until [ -e {held} ]; do sleep 0.05; done; echo ended")
    until(lambda: first.client().job(job).status == "running", "it runs", on_ray.messages)
    agents = [on_ray.agent(node) for node in NODES]
    for process in (first.pid("supervisor"), first.pid("control"), holder(first.home.root / "ray" / "lock")):
        kill(process)
    until(lambda: Client(Home(second.home.root)).status().accepting, "the second one leads", second.messages)
    until(lambda: second.messages().count("is kept from here") == len(NODES), "both have gone over", second.messages)
    held.touch()
    done = Client(second.home).wait(job, PATIENCE)
    assert (done.exit_code, done.tasks[0].epoch) == (0, 1)
    assert second.poise("logs", job).text == "begun\nended\n"
    gang = on_ray.submit("true", workers=2)
    assert second.poise("wait", gang).code == 0, second.messages()
    assert sorted(on_ray.where(gang)) == [*NODES]
    assert [on_ray.agent(node) for node in NODES] == agents, "none of them was started again"
