"""Tasks in containers: what podman is asked for."""

from poise.drivers.containers import LABEL, name_of, wrapped
from poise.model.messages import Attempt
from poise.model.resources import Device


def asked(**given: object) -> tuple[str, ...]:
    fields = {"folder": "/work", "shared": ("/results", "", "/results"), "devices": (), "memory": 0}
    return wrapped(
        "/usr/bin/podman", "a/b:1", ("train", "--all"), {"PATH": "/bin", "HOME": "/root", "SEED": "secret"},
        node="/home/n1", name="poise-1", **fields | given,  # type: ignore[arg-type]
    )  # fmt: skip


def test_values_of_variables_are_in_no_command_line_and_the_image_has_its_own_path() -> None:
    told = asked()
    assert "--env=SEED" in told and not any("secret" in word for word in told)
    assert not any(word.startswith(("--env=PATH", "--env=HOME")) for word in told)


def test_the_command_comes_last_and_its_folders_are_where_they_are_on_the_node() -> None:
    told = asked()
    assert (told[0], told[-3:]) == ("/usr/bin/podman", ("a/b:1", "train", "--all"))
    assert [word for word in told if word.startswith("--volume")] == [
        "--volume=/results:/results",
        "--volume=/work:/work",
    ]
    assert "--workdir=/work" in told
    assert not any(word.startswith("--workdir") for word in asked(folder=""))
    assert f"--label={LABEL}=/home/n1" in told


def test_devices_are_named_by_cdi_and_memory_is_a_limit_without_swap() -> None:
    devices = [
        Device(index=0, uuid="GPU-1"),
        Device(index=1, driver_index=4),
        Device(index=2, kind="gpu", backend="rocm"),
        Device(index=3, kind="npu"),
    ]
    told = asked(devices=devices, memory=2**30)
    named = [word.removeprefix("--device=") for word in told if word.startswith("--device")]
    assert named == ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=4", "amd.com/gpu=2"]
    assert {"--memory=1073741824", "--memory-swap=1073741824"} <= {*told}


def test_each_attempt_of_each_node_has_a_name_that_podman_takes() -> None:
    names = {
        name_of(node, Attempt(task, epoch)) for node in ("a", "b") for task in ("j1.x[0]", "j1.y") for epoch in (1, 2)
    }
    assert len(names) == 8
    assert all(name.replace("-", "").isalnum() for name in names)
