"""Tasks in containers of their image, by a real podman under a real agent."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from drivers.registry import Registry

from system.living import Living, until
from system.podman import IMAGE, Podman


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Below a short path: below a long one, podman waits 20 s for each container that has ended."""
    with TemporaryDirectory(prefix="poise-", ignore_cleanup_errors=True) as at:
        yield Podman(Path(at))


@pytest.fixture(scope="module")
def living(podman: Podman) -> Iterator[Living]:
    living = Living()
    living.variables["PATH"] = f"{podman.bin}:{os.environ['PATH']}"
    try:
        living.up()
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_a_command_runs_in_its_image_with_its_variables_and_its_folder(living: Living, podman: Podman) -> None:
    living.file("given", "from the node\n")
    script = 'cat /of-the-image given; echo "$SEED $POISE_TASK"; echo \'{"best": 3}\' > "$POISE_RESULT"; exit 3'
    done = living.poise("run", "--image", IMAGE, "--env", "SEED=7", "--name", "inside", "--", "sh", "-c", script)
    lines = done.text.splitlines()
    assert (done.code, lines[:2]) == (3, ["inside", "from the node"]), done.err
    assert lines[2].startswith("7 j")
    assert living.client().job("inside").tasks[0].exit_code == 3
    until(lambda: not podman.containers(), "nothing of it is left")


def test_a_cancelled_container_ends_and_is_forgotten(living: Living, podman: Podman) -> None:
    job = living.poise(
        "submit",
        "--image",
        IMAGE,
        "--",
        "sh",
        "-c",
        'trap "echo asked; exit 0" TERM; echo up; while :; do sleep 0.1; done',
    ).text.strip()
    until(lambda: "up" in living.poise("logs", job).text, "it runs")
    assert len(podman.containers()) == 1
    assert living.poise("cancel", job).code == 0
    until(lambda: living.client().job(job).status == "cancelled", "it is over")
    assert "asked" in living.poise("logs", job).text
    until(lambda: not podman.containers(), "it is forgotten")


def test_what_ignores_its_end_is_killed_with_everything_in_it(living: Living, podman: Podman) -> None:
    job = living.poise(
        "submit", "--image", IMAGE, "--grace", "200ms", "--",
        "sh", "-c", 'trap "" TERM; echo up; sleep 4321.75 & while :; do sleep 0.1; done',
    ).text.strip()  # fmt: skip
    until(lambda: "up" in living.poise("logs", job).text, "it runs")
    assert living.poise("cancel", job).code == 0
    until(lambda: living.client().job(job).status == "cancelled", "it is over")
    until(lambda: not any("4321.75" in line for line in command_lines()), "nothing of it runs")
    until(lambda: not podman.containers(), "it is forgotten")


def test_a_container_outlives_the_agent_and_is_adopted(living: Living, podman: Podman) -> None:
    job = living.poise(
        "submit", "--image", IMAGE, "--", "sh", "-c", "echo up; while [ ! -e go ]; do sleep 0.1; done; echo went on"
    ).text.strip()
    until(lambda: "up" in living.poise("logs", job).text, "it runs")
    agent = living.pid("agent")
    os.kill(agent, signal.SIGKILL)
    until(lambda: living.pid("agent") not in (0, agent), "there is another agent")
    assert len(podman.containers()) == 1
    living.file("go", "")
    assert living.poise("wait", job).code == 0
    assert living.client().job(job).tasks[0].epoch == 1
    assert "went on" in living.poise("logs", job).text


def test_a_container_that_exceeds_its_memory_is_told_as_out_of_memory(living: Living, podman: Podman) -> None:
    script = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done"
    done = living.poise(
        "run", "--image", IMAGE, "--memory", "64MiB", "--retries", "0", "--name", "large", "--", "sh", "-c", script
    )
    assert done.code == 137, done.err
    assert living.client().job("large").tasks[0].outcome == "oom"
    until(lambda: not podman.containers(), "nothing of it is left")


def test_an_image_that_cannot_be_had_is_told_by_podman(living: Living) -> None:
    done = living.poise("run", "--image", "localhost/no-such:1", "--retries", "0", "--", "true")
    assert done.code == 125
    assert "no-such" in done.err + done.text


@pytest.fixture(scope="module")
def registry(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a private image, of which this home has the credentials of one tenant, `vision`."""
    saved = tmp_path_factory.mktemp("saved") / "image"
    podman("save", "--quiet", "--format=oci-dir", "--output", str(saved), IMAGE)
    with Registry("vision:secret").serving() as registry:
        podman.trust(registry.host)
        registry.add_saved("vision/small:1", saved)
        yield registry


def test_a_private_image_runs_for_its_tenant_only_and_by_the_digest_of_its_submission(
    living: Living, registry: Registry
) -> None:
    living.home.registries.mkdir(mode=0o700, exist_ok=True)
    registry.logins(living.home.registries / "vision.json")
    secrets = {}
    for tenant in ("vision", "other"):
        added = living.poise("token", "add", "--tenant", tenant, "--role", "submitter", "--json")
        secrets[tenant] = added.value["secret"]
    image = f"{registry.host}/vision/small:1"
    digest = next(name.partition(":")[2] for name in registry.tags if "sha256" in name)
    run = ("run", "--retries", "0", "--image", image)
    own = living.poise(*run, "--name", "own", "--", "cat", "/of-the-image", POISE_TOKEN=secrets["vision"])
    assert (own.code, own.text) == (0, "inside\n"), own.err
    told = living.poise("show", "own", POISE_TOKEN=secrets["vision"]).text
    assert f"image: {image}@{digest}" in told

    script = 'echo up; until [ -e moved ]; do sleep 0.1; done; [ "$POISE_EPOCH" = 2 ]'
    again = ("submit", "--retries", "1", "--image", image, "--", "sh", "-c", script)
    job = living.poise(*again, POISE_TOKEN=secrets["vision"]).text.strip()
    until(lambda: "up" in living.poise("logs", job).text, "it runs")
    del registry.tags["vision/small:1"]
    living.file("moved", "")
    assert living.poise("wait", job).code == 0, "the tag is gone, the digest is not"
    gone = living.poise(*run, "--json", "--", "true", POISE_TOKEN=secrets["vision"])
    assert "does not have this image" in gone.error["message"]

    pinned = f"{registry.host}/vision/small@{digest}"
    for given in ({"POISE_TOKEN": secrets["other"]}, {}):  # its neighbour has pulled it here
        refused = living.poise("run", "--retries", "0", "--image", pinned, "--", "true", **given)
        assert refused.code == 125, refused.text
    for from_storage in (f"containers-storage:{pinned}", "dir:/etc", "oci-archive:x"):
        refused = living.poise("run", "--json", "--image", from_storage, "--", "true")
        assert "not the name of an image" in refused.error["message"]


def test_an_image_is_fetched_while_its_task_waits(living: Living, podman: Podman, registry: Registry) -> None:
    saved = podman.image.with_name("ahead")
    podman("import", "--quiet", "--change", "ENV AHEAD=yes", str(podman.image), "localhost/ahead:1")
    podman("save", "--quiet", "--format=oci-dir", "--output", str(saved), "localhost/ahead:1")
    podman("rmi", "localhost/ahead:1")
    registry.logins(living.home.registries / "default.json")
    registry.add_saved("ahead:1", saved)
    image = f"{registry.host}/ahead:1"
    fills = ("submit", "--cpu", str(len(os.sched_getaffinity(0))), "--name", "fills")
    living.poise(*fills, "--", "sh", "-c", "until [ -e free ]; do sleep 0.1; done")
    job = living.poise("submit", "--image", image, "--", "sh", "-c", "echo $AHEAD").text.strip()
    until(lambda: any("ahead/blobs" in one for one in registry.asked), "it is fetched")
    until(lambda: living.client().nodes()[0].images > 2, "the node says so")
    assert living.client().job(job).status == "pending"
    living.file("free", "")
    assert living.poise("wait", job).code == 0
    assert "yes" in living.poise("logs", job).text


def test_where_no_node_runs_containers_the_reason_names_the_label() -> None:
    alone = Living()
    try:
        without = ":".join(p for p in os.environ["PATH"].split(":") if not (Path(p) / "podman").exists())
        alone.variables["PATH"] = without
        alone.up()
        done = alone.poise("submit", "--image", IMAGE, "--", "true")
        told = done.err + alone.poise("explain", done.text.strip() or "j1").text
        assert "containers" in told
    finally:
        alone.destroy()


def command_lines() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:
                continue
    return found
