"""One control plane for two accounts of a real Slurm: each has a keeper and allocations of its own."""

from collections.abc import Iterator

import pytest

from poise.drivers.lock import holder
from system.living import Living, free_port, kill, until
from system.onslurm import OnSlurm
from system.slurm_cluster import SlurmCluster, slurm

ACCOUNTS = ("physics", "ai")
WAITS = "until [ -e {} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH"


class OnTwoAccounts(OnSlurm):
    """A home that uses one node of each account."""

    def __init__(self, cluster: SlurmCluster, living: Living) -> None:
        super().__init__(cluster, living)
        self.work = living.work

    def submit_to(self, account: str, run: str) -> str:
        return self.submit(run, resources={"cpu": 1, "label": {"substrate": account}}, expect="5s")

    def cluster_of(self, job: str) -> str:
        """Return the label of the node on which a job runs or ran."""
        name = self.living.client().job(job).tasks[0].node
        return next(node.labels["substrate"] for node in self.living.client().nodes() if node.name == name)

    def accounts(self) -> dict[str, str]:
        """Return the allocations of each account, by account."""
        lines = self.cluster.call("squeue", "-h", "-n", "poise", "-o", "%a %i").split("\n")
        return dict(line.split() for line in lines if line)


@pytest.fixture(scope="module")
def on() -> Iterator[OnTwoAccounts]:
    with slurm(2) as cluster:
        living = Living()
        try:
            on = OnTwoAccounts(cluster, living)
            both = [of for name in ACCOUNTS for of in ("--on", f"{name}=slurm:main,account={name},nodes=1,idle=600")]
            done = living.poise("up", "--port", "0", *both, "--listen", f"127.0.0.1:{free_port()}")
            assert done.code == 0, done.err
            yield on
            assert living.poise("down", "--cancel").code == 0
            until(lambda: not cluster.jobs(), "the allocations of both have ended", on.messages)
            until(lambda: not living.processes(), "nothing is left", living.processes)
        finally:
            living.destroy()


def test_each_account_has_allocations_of_its_own_and_a_loss_on_one_does_not_disturb_the_other(
    on: OnTwoAccounts,
) -> None:
    """In one story, since each part needs the allocations of the one before it."""
    client, released = on.living.client(), on.work / "released"
    jobs = {name: on.submit_to(name, WAITS.format(released)) for name in ACCOUNTS}
    for name, job in jobs.items():
        assert on.until_running(job).startswith(f"{name}-n")
        assert on.cluster_of(job) == name
    before = on.accounts()
    assert before.keys() == {*ACCOUNTS}
    checks = {check["name"] for check in on.living.poise("doctor", "--json").value["checks"]}
    assert {f"Slurm `{name}`" for name in ACCOUNTS} <= checks

    lock = on.living.home.root / "ai" / "lock"
    keeper = holder(lock)
    kill(keeper)
    until(lambda: holder(lock) not in (0, keeper), "there is another keeper", on.messages)
    on.cluster.call("scancel", before["ai"])
    until(lambda: client.job(jobs["ai"]).tasks[0].epoch == 2, "it has another attempt", on.messages)
    on.until_running(jobs["ai"], epoch=2)
    assert on.accounts() == {"physics": before["physics"], "ai": on.accounts()["ai"]} != before
    released.touch()
    for name, epoch in (("physics", 1), ("ai", 2)):
        assert on.living.poise("wait", jobs[name]).code == 0, on.messages()
        assert on.living.poise("logs", jobs[name]).text == f"epoch {epoch}\n"
        assert on.cluster_of(jobs[name]) == name


def test_work_that_names_no_account_uses_both_and_explain_compares_them(on: OnTwoAccounts) -> None:
    client, released = on.living.client(), on.work / "both"
    jobs = [on.submit(WAITS.format(released), expect="5s") for _ in ACCOUNTS]
    for job in jobs:
        on.until_running(job)
    assert {on.cluster_of(job) for job in jobs} == {*ACCOUNTS}
    waits = on.submit("true", expect="1s")
    found = until(
        lambda: {one.substrate for one in client.explain(waits).prospects} >= {*ACCOUNTS}, "compared", on.messages
    )
    assert found
    released.touch()
    assert [on.living.poise("wait", job).code for job in (*jobs, waits)] == [0, 0, 0], on.messages()
