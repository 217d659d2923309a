"""Tasks in containers: what podman is asked for."""

from pathlib import Path

from poise.drivers.containers import (
    LABEL,
    forget,
    labels,
    may_have_run_out,
    name_of,
    prepare,
    pulled,
    without_tag,
    wrapped,
)
from poise.model.jobs import Ending
from poise.model.messages import Attempt
from poise.model.resources import Device


def asked(**given: object) -> tuple[str, ...]:
    fields = {"folder": "/work", "shared": ("/results", "", "/results"), "devices": (), "memory": 0}
    return wrapped(
        "/usr/bin/podman", "a/b:1", ("train", "--all"), {"PATH": "/bin", "HOME": "/root", "SEED": "secret"},
        node="/home/n1", name="poise-1", **fields | given,  # type: ignore[arg-type]
    )  # fmt: skip


def test_podman_gets_a_digest_without_its_tag() -> None:
    digest = "sha256:" + "a" * 64
    assert without_tag(f"host:5000/a/b:1@{digest}") == f"host:5000/a/b@{digest}"
    assert without_tag(f"a/b@{digest}") == f"a/b@{digest}"
    assert without_tag("host:5000/a/b:1") == "host:5000/a/b:1"


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


def test_devices_are_named_by_cdi_or_by_their_files_and_memory_is_a_limit_without_swap() -> None:
    devices = [
        Device(index=0, uuid="GPU-1"),
        Device(index=1, driver_index=4),
        Device(index=2, kind="gpu", backend="rocm"),
        Device(index=3, kind="npu"),
    ]
    told = asked(devices=devices, memory=2**30)
    named = [word.removeprefix("--device=") for word in told if word.startswith("--device")]
    assert named[:3] == ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=4", "amd.com/gpu=2"]
    assert named[3:] == ["/dev/davinci3", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
    assert {"--memory=1073741824", "--memory-swap=1073741824"} <= {*told}


def test_a_container_of_an_account_needs_no_rights_and_leaves_nothing() -> None:
    told = asked(rootless=True, memory=2**30)
    assert told[told.index("/usr/bin/podman") + 2] == "run" and "--rm" in told
    assert not any(word.startswith("--memory") for word in told), "the keeper limits it"
    assert told[0] == "/bin/sh" and told[-3:] == ("a/b:1", "train", "--all")
    assert "--rm" not in asked()


def test_each_attempt_of_each_node_has_a_name_that_podman_takes() -> None:
    names = {
        name_of(node, Attempt(task, epoch)) for node in ("a", "b") for task in ("j1.x[0]", "j1.y") for epoch in (1, 2)
    }
    assert len(names) == 8
    assert all(name.replace("-", "").isalnum() for name in names)


NVIDIA, ROCM, ASCEND = Device(index=0), Device(index=1, backend="rocm"), Device(index=2, kind="npu")


def test_a_node_says_which_kinds_of_device_its_podman_can_pass(tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert labels([NVIDIA, ASCEND], [none], none) == {"containers": "yes"}
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n")
    assert labels([NVIDIA, ASCEND], [none, tmp_path], none) == {"containers": "yes", "containers-gpu": "yes"}
    assert labels([NVIDIA, ROCM], [tmp_path], none) == {"containers": "yes"}  # a task may get either
    (tmp_path / "amd.json").write_text('{"cdiVersion": "0.5.0", "kind": "amd.com/gpu", "devices": []}')
    assert "containers-gpu" in labels([NVIDIA, ROCM], [tmp_path], none)
    assert labels([ASCEND], [none], tmp_path) == {"containers": "yes", "containers-npu": "yes"}


def test_only_a_killed_container_with_a_limit_may_have_run_out_of_memory() -> None:
    assert may_have_run_out(Ending(outcome="failed", code=137, limit=1 << 20))
    assert not may_have_run_out(Ending(outcome="failed", code=137))
    assert not may_have_run_out(Ending(outcome="failed", code=1, limit=1 << 20))
    assert not may_have_run_out(Ending(outcome="stopped", code=137, limit=1 << 20))


def test_a_tenant_pulls_with_its_own_credentials_or_with_none_and_each_time(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert pulled("a/b:1", "default", tmp_path) == ("--pull=missing",), "as the user of the agent"
    (tmp_path / "ann.json").write_text('{"auths": {}}')
    assert pulled("a/b:1", "default", tmp_path) == ("--pull=always",), "ann may have pulled it"
    assert pulled("a/b:1", "ann", tmp_path) == ("--pull=always", f"--authfile={tmp_path}/ann.json")
    assert pulled("a/b:1", "bob", tmp_path) == ("--pull=always", f"--authfile={tmp_path}/.none.json")
    assert pulled("localhost/b:1", "bob", tmp_path) == ("--pull=missing",)
    assert (tmp_path / ".none.json").read_text() == "{}\n"


def test_containers_are_forgotten_only_if_podman_says_so(tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\nexit 125\n")
    podman.chmod(0o755)
    assert not forget(str(podman), ["poise-1"])
    assert not forget(str(tmp_path / "gone"), ["poise-1"])
    podman.write_text("#!/bin/sh\nexit 0\n")
    assert forget(str(podman), ["poise-1"])
