"""Devices as a user meets them: found through a maker's tool, given to commands, described, measured, examined."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.living import Living, until

RECORDED = Path(__file__).parent.parent / "drivers" / "recorded"


@pytest.fixture(scope="module")
def npus() -> Iterator[Living]:
    """A control plane on a machine whose `npu-smi` prints what one with three Ascend 910B2 printed."""
    living = Living()
    tools = living.root / "tools"
    tools.mkdir()
    shutil.copy(RECORDED / "npu-smi-910b2.txt", tools / "table")
    tool = tools / "npu-smi"
    tool.write_text(f"#!/bin/sh\ncat {tools}/table\n")
    tool.chmod(0o755)
    try:
        living.home.root.mkdir(mode=0o700)
        living.home.devices.write_text("devices: [{index: 1, compute_power: 70 TFLOPS, price: 2}]\n")
        path = f"{tools}:{os.environ['PATH']}"
        done = living.poise("up", "--port", "0", PATH=path)
        assert done.code == 0, done.err
        until(lambda: living.client().nodes(), "the agent has joined")
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()


def test_what_the_tool_prints_is_offered_and_what_a_person_wrote_goes_first(npus: Living) -> None:
    (node,) = npus.poise("nodes", "--json").value
    assert [(device["index"], device["kind"], device["model"]) for device in node["devices"]] == [
        (index, "npu", "Ascend910B") for index in range(3)
    ]
    first, second, _ = node["devices"]
    assert first["sources"] == {"memory": "driver"}
    assert second["rates"] == {"fp32": 70 * 10**12}
    assert second["sources"] == {"memory": "driver", "price": "declared", "rates.fp32": "declared"}


def test_a_command_sees_the_devices_that_it_was_given(npus: Living) -> None:
    show = "echo [$ASCEND_RT_VISIBLE_DEVICES] [$CUDA_VISIBLE_DEVICES] [$ROCR_VISIBLE_DEVICES]"
    done = npus.poise("run", "--gpu", "3", "--gpu-kind", "npu", "--", "sh", "-c", show)
    assert (done.code, done.text) == (0, "[0,1,2] [] []\n")
    assert npus.poise("run", "--", "sh", "-c", show).text == "[] [] []\n"
    assert npus.poise("run", "--gpu", "1", "--", "true").code == 125


@pytest.mark.slow
def test_what_was_measured_is_said_by_the_agent_soon(npus: Living) -> None:
    done = npus.poise("bench-devices", "--quick", "--json")
    assert done.code == 0, done.err
    (processor,) = done.value
    assert set(processor["rates"]) == {"fp64", "fp32"} or "torch" in processor["library"]
    assert processor["rates"]["fp32"]["least"] <= processor["rates"]["fp32"]["median"]
    until(lambda: npus.client().nodes()[0].sources.get("rates.fp32") == "measured", "the agent has looked again")


def test_nothing_is_measured_beside_work(npus: Living) -> None:
    job = npus.poise("submit", "--", "sleep", "60").text.strip()
    until(lambda: npus.client().nodes()[0].running == 1, "it runs")
    done = npus.poise("bench-devices", "--quick", "--json")
    assert (done.code, done.error["code"]) == (1, "E121")
    assert "--no-save" in done.error["hint"]
    assert npus.poise("cancel", job).code == 0
    npus.poise("wait", job)


def test_the_doctor_looks_at_what_runs(npus: Living) -> None:
    done = npus.poise("doctor", "--json")
    found = {check["name"]: check for check in done.value["checks"]}
    assert (done.code, done.value["well"]) == (0, True), found
    assert found["control plane"]["text"].startswith("up, policy poise")
    assert found["bound to"]["text"].startswith("127.0.0.1:")
    assert found["socket"]["status"] == found["token"]["status"] == "ok"
    npus.home.token.chmod(0o644)
    try:
        done = npus.poise("doctor")
        assert done.code == 1
        assert f"chmod 600 {npus.home.token}" in done.text
    finally:
        npus.home.token.chmod(0o600)


def test_the_catalogue_is_printed_with_its_sources(npus: Living) -> None:
    entries = {entry["name"]: entry for entry in npus.poise("catalogue", "--json").value}
    assert entries["H100"]["rates"]["fp16"] == 989_500_000_000_000
    assert all(entry["source"] for entry in entries.values())
    assert "H100-PCIe" in npus.poise("catalogue").text


def test_a_bad_file_of_devices_is_refused_when_poise_is_brought_up(npus: Living) -> None:
    good = npus.home.devices.read_text()
    npus.home.devices.write_text("devices: [{prize: 2}]\n")
    try:
        done = npus.poise("up", "--json")
        assert (done.code, done.error["field"]) == (1, "devices[0].prize")
    finally:
        npus.home.devices.write_text(good)
