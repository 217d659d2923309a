"""What no node could ever run is refused with what was meant."""

from typing import Any

import msgspec
import pytest

from poise.errors import SpecError
from poise.model.catalogue import device_of
from poise.model.decisions import Reason
from poise.model.resources import CONTAINERS, Node, contained
from poise.testing import World, node
from unit.asking import explained
from unit.kernel.test_whatif import waits


def offering(name: str, *models: str) -> Node:
    devices = tuple(device_of(model, index) for index, model in enumerate(models))
    return msgspec.structs.replace(node(name, cpu=8), devices=devices)


def lab() -> World:
    return World().join(offering("hopper", "H100", "H100")).join(offering("ascend", "Ascend910"))


@pytest.mark.parametrize(
    ("asked", "field", "message", "hint"),
    [
        (
            {"gpu_model": "h1000"},
            "resources.gpu_model",
            "`main`: no node has a device of model `h1000`",
            "did you mean `H100`? `gpu_model: H100`, or `--gpu-model H100`",
        ),
        (
            {"gpu_model": "T4"},
            "resources.gpu_model",
            "`main`: no node has a device of model `T4`",
            "`poise nodes` shows the resources: `gpu_model: H100`, or `--gpu-model H100`",
        ),
        (
            {"gpu_kind": "npus"},
            "resources.gpu_kind",
            "`main`: no node has a device of kind `npus`",
            "did you mean `npu`? `gpu_kind: npu`, or `--gpu-kind npu`",
        ),
        (
            {"gpu_model": "Ascend910"},
            "resources.gpu_kind",
            "`main`: no Ascend910 here is a device of kind `gpu`",
            "`gpu_kind: npu`, or `--gpu-kind npu`",
        ),
    ],
)
def test_a_device_that_nobody_has(asked: dict[str, str], field: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        lab().job("a", gpu=1, **asked)
    record = refused.value.record
    assert (record.code, record.field, record.message, record.hint) == ("E110", field, message, hint)


def test_a_share_above_every_cap_is_told_the_largest() -> None:
    with pytest.raises(SpecError) as refused:
        lab().job("a", gpu=1, gpu_model="H100", gpu_share=0.9)
    record = refused.value.record
    assert record.have == "closest is hopper: work may share up to 0.8 of one of its devices, 0.9 needed"
    assert "`--cpu 1 --gpu 1 --gpu-share 0.8` would fit on hopper" in record.hint


def test_too_many_of_a_device_that_there_is_names_the_closest_node() -> None:
    with pytest.raises(SpecError, match="requests more than any node has") as refused:
        lab().job("a", gpu=4, gpu_model="H100")
    assert "`--cpu 1 --gpu 2` would fit on hopper" in refused.value.record.hint


def test_what_there_is_is_placed() -> None:
    assert lab().job("a", gpu=1, gpu_kind="npu").round().where("a") == ["ascend"]


def test_a_node_or_a_label_that_nobody_has() -> None:
    world = lab().join(msgspec.structs.replace(node("east-1"), zone="east", labels={"team": "vision"}))
    for asked, field, have, hint in (
        (
            {"node": "hoper"},
            "node",
            "ascend, east-1, hopper",
            "did you mean `hopper`? `node: hopper`, or `--node hopper`",
        ),
        (
            {"label": {"zone": "eest"}},
            "label.zone",
            "zone: east",
            "`--label zone=east`; `poise nodes -o wide` shows all",
        ),
        (
            {"label": {"spot": True}},
            "label.spot",
            "no node has a label `spot`",
            "`labels:` in `devices.yaml` of a machine, or in a fleet file, gives it one",
        ),
        (
            {"exclude_node": ["hopper", "east-1", "ascend", "elsewhere"]},
            "exclude_node",
            "ascend, east-1, hopper",
            "exclude fewer nodes; `poise nodes` lists all",
        ),
        (
            {"node": "hopper", "label": {"zone": "east"}},
            "",
            "",
            "`poise nodes -o wide` shows all",
        ),
    ):
        with pytest.raises(SpecError) as refused:
            world.job("a", **asked)
        record = refused.value.record
        at = f"resources.{field}".removesuffix(".")
        assert (record.code, record.field, record.have, record.hint) == ("E110", at, have, hint)


def test_what_is_too_large_for_the_nodes_where_it_may_run_is_told_of_these() -> None:
    with pytest.raises(SpecError) as refused:
        lab().job("a", gpu=1, node="ascend")
    assert refused.value.record.have.startswith("closest is ascend: has no suitable device")


@pytest.mark.parametrize(
    ("asks", "never"),
    [
        ({"node": "nowhere"}, "`main`: no node has the name `nowhere`"),
        ({"label": {"zone": "eu"}}, "`main`: no node has the label zone=eu"),
        ({"cpu": 100}, "`main` requests more than any node has"),
    ],
)
def test_what_came_before_the_first_node_says_that_no_node_can_run_it(asks: dict[str, Any], never: str) -> None:
    world = World().job("a", **asks).round()
    assert world.codes("a") == ["NO_NODES"]
    world.nodes(2).round()
    told = Reason(code="NOWHERE", have=never, fixable="never")
    assert world.reasons("a")[0] == told
    assert waits(world, "a").reasons[0] == told
    world.join(msgspec.structs.replace(node("nowhere", cpu=200), zone="eu")).round()
    assert world.where("a") == ["nowhere"]


def test_a_node_that_is_named_and_not_there_is_told_at_submission_and_when_it_waits_or_runs() -> None:
    world = lab().job("typo", exclude_node="hoper").job("either", node=["hopper", "elsewhere"], cpu=8)
    told = "excludes hoper, but there is no such node: did you mean `hopper`? nodes are ascend, hopper"
    assert world.state("typo").note == f"the job {told}"
    assert waits(world, "typo").reasons[0].sentence() == told
    world.round().start("typo", "either")
    assert [reason.sentence() for reason in explained(world, "typo").running[0].reasons] == [told]
    [reason] = explained(world, "either").running[0].reasons
    assert (reason.code, reason.subject, reason.have) == ("ALLOWS_UNKNOWN", "elsewhere", "nodes are ascend, hopper")
    world.join(node("hoper", cpu=1)).round()
    assert explained(world, "typo").running[0].reasons == (), "it has joined since"


def test_a_node_that_is_named_before_any_has_joined() -> None:
    world = World().job("a", node="n1").job("b", node="n2", exclude_node="n3", deadline="1h", expect="1m")
    assert world.state("a").note == "the job may run on n1, but there is no such node: no node has joined yet"
    assert world.state("b").note.count("no such node") == 2
    world.nodes(2).round()
    assert world.where("a") == ["n1"]
    assert world.job("c", node="n2", exclude_node="n1").state("c").note == ""


def test_a_note_on_names_and_one_on_a_deadline_are_both_told() -> None:
    world = World().nodes(1, cpu=1).job("first", cpu=1, expect="10m")
    world.job("late", cpu=1, expect="10m", deadline="15m", exclude_node="m1")
    there, late = world.state("late").note.split("; ", 1)
    assert there.startswith("the job excludes m1") and late.startswith("it may be late")


def test_a_task_with_an_image_needs_a_node_that_can_pass_its_devices_to_containers() -> None:
    plain = node("plain", gpus=1)
    world = World().join(msgspec.structs.replace(plain, labels=CONTAINERS))
    with pytest.raises(SpecError, match="no node has the label containers-gpu=yes") as refused:
        world.job("train", image="a/b:1", gpu=1)
    assert "cdi generate" in refused.value.record.hint
    world.join(msgspec.structs.replace(plain, name="cdi", labels=CONTAINERS | {contained("gpu"): "yes"}))
    world.job("train", image="a/b:1", gpu=1).job("prepare", image="a/b:1").round()
    assert world.where("train") == ["cdi"]
    assert world.status("prepare") == "placed"
