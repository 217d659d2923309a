"""Learned policies: which unit starts next, when the network is not asked, and files that hold it."""

import io
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from poise.drivers.plugins import choose, choose_document, policy_settings, tried
from poise.drivers.weights import read_weights, with_weights, write_weights
from poise.errors import SpecError
from poise.kernel.controller import Settings
from poise.kernel.replay import replay as replayed
from poise.kernel.replay import shipped
from poise.model.decisions import Place
from poise.model.events import Began, Event
from poise.model.resources import Device, Node
from poise.model.workload import Workload
from poise.policy.learned import Learned
from poise.policy.network import MOST_WEIGHT, ROOM_FEATURES, SHAPE_FEATURES, UNIT, Brain, Network, Seen, layers_of
from poise.policy.suites import policy_named
from poise.testing import World, replay
from poise_lab.traces.options import Options
from poise_lab.traces.synthetic import generate, parse
from poise_lab.trial import simulate

HIDDEN = 4
FEATURES = len(SHAPE_FEATURES) + len(ROOM_FEATURES)
EVERYWHERE = 1e6


def network(seed: int = 0, *, reach: float = EVERYWHERE) -> Network:
    """A network of random weights; it was trained on features from minus to plus `reach`."""
    chance = np.random.default_rng(seed)
    arrays = {name: chance.integers(-UNIT, UNIT, size).tolist() for name, size in layers_of(HIDDEN).items()}
    return Network(arrays=arrays, low=[-reach] * FEATURES, high=[reach] * FEATURES, study={"seed": str(seed)})


def picking(feature: str, sign: int, *, reach: float = EVERYWHERE) -> Network:
    """A network that always picks the slot with the most (or least) of a feature of shapes."""
    of = network(reach=reach)
    arrays = {name: np.zeros_like(np.array(rows)) for name, rows in of.arrays.items()}
    arrays["shape"][SHAPE_FEATURES.index(feature), 0] = sign * UNIT
    arrays["shape_bias"][0, 0] = 4 * UNIT  # so that no sign is lost
    arrays["score"][0, 0] = arrays["pick"][0, 0] = UNIT
    return replace(of, arrays={name: rows.tolist() for name, rows in arrays.items()})


HOSTILE = picking("worth", -1)
"""It always picks what is worth least."""


def document(of: Network) -> dict[str, Any]:
    return {"kind": "policy", "name": "ours", "extends": "poise", "weights": msgspec.to_builtins(of)}


def policy(of: Network) -> Any:
    return tried(choose_document(document(of)))


def waiting(of: Network) -> World:
    """Three units of different shapes have waited for two devices that become free."""
    world = World(policy(of)).nodes(1, gpus=2).job("first", gpu=2, expect="4h", **{"class": "k"}).round()
    world.job("long", gpu=1, cpu=0.5, expect="30m").job("short", gpu=1, expect="10m").job("wide", gpu=2, expect="20m")
    return world.after("3h").finish("first", run="4h").round()


def reason(world: World, name: str) -> str:
    """Why a unit was placed, in words."""
    unit = world.unit(name).id
    places = (one for plan in world.plans for one in plan.decisions if isinstance(one, Place) and one.unit == unit)
    return next(places).why.rank


def test_the_network_picks_what_starts_and_the_decision_says_so() -> None:
    world = waiting(picking("run", 1))
    assert world.where("long")
    assert "picked by the network before" in reason(world, "long")
    assert replay(world.log).encode() == world.ledger.encode()


def test_a_network_that_leaves_everything_decides_as_poise() -> None:
    idle = picking("run", 0)
    idle = replace(idle, arrays=idle.arrays | {"shape_bias": [[0] * HIDDEN], "leave_bias": [[UNIT]]})
    workload, nodes = stated(jobs=120)
    mine, poise = (simulate(workload, nodes, one) for one in (policy(idle), policy_named("poise")))
    assert mine.completions == poise.completions


def test_a_replay_of_the_log_decides_the_same() -> None:
    choice = choose_document(document(picking("run", 1)))
    events: list[Event] = []
    settings = Settings(**policy_settings(choice, 0.0))
    simulate(*stated(jobs=60), tried(choice), settings, observe=events.append)
    assert "picked by the network" in str(events)
    told = replayed(events)
    assert told.rounds > 50
    assert told.same, told.difference


def test_outside_its_training_poise_decides_and_the_decision_says_why() -> None:
    world = waiting(picking("run", 1, reach=1e-3))
    assert world.where("short")
    rank = reason(world, "short")
    assert "in the order of poise: `run` of a shape is" in rank
    assert "in training" in rank


def test_work_that_has_waited_too_long_is_served_by_poise() -> None:
    world = World(policy(HOSTILE)).nodes(1, gpus=2).job("first", gpu=2, expect="4h").round()
    world.job("long", gpu=1, expect="30m").job("short", gpu=1, cpu=0.5, expect="10s").job("wide", gpu=2, expect="20m")
    world.after("20m").finish("first", run="4h").round()
    assert "has waited" in reason(world, "short")


def test_a_pick_that_is_worth_too_little_is_refused() -> None:
    world = World(policy(HOSTILE)).nodes(1, gpus=2).job("first", gpu=2, expect="4h").round()
    world.job("endless", gpu=1, expect="300h").job("short", gpu=1, cpu=0.5, expect="10m").job(
        "wide", gpu=2, expect="20m"
    )
    world.round().finish("first", run="4h").round()
    assert "is worth" in reason(world, "short")


def test_the_order_of_slots_does_not_matter() -> None:
    chance = np.random.default_rng(1)
    shapes, room = chance.random((7, len(SHAPE_FEATURES))), chance.random(len(ROOM_FEATURES))
    brain, order = Brain(network(3)), chance.permutation(7)
    units = tuple("abcdefg")
    scores, moved = brain.scores(Seen(shapes, room, units)), brain.scores(Seen(shapes[order], room, units))
    assert moved[0] == scores[0]
    assert (moved[1:] == scores[1:][order]).all()


def test_the_largest_weights_and_features_stay_within_64_bits() -> None:
    arrays = {name: [[MOST_WEIGHT for _ in row] for row in rows] for name, rows in network().arrays.items()}
    big = replace(network(), arrays=arrays)
    seen = Seen(np.full((16, len(SHAPE_FEATURES)), 1e9), np.full(len(ROOM_FEATURES), 1e9), ("a",) * 16)
    assert (Brain(big).scores(seen) > 0).all()


def stated(jobs: int, seed: int = 1) -> tuple[Workload, list[Node]]:
    """A crowded fleet of 4 nodes with 4 devices each, on which work starts over when it is preempted."""
    nodes = [
        Node(
            name=f"n{number}",
            incarnation="1",
            cpu=64_000,
            memory=2**38,
            devices=tuple(Device(index=at, memory=2**34, uuid=f"{number}-{at}", model="T4") for at in range(4)),
        )
        for number in range(4)
    ]
    options = Options(devices_per_node=4, seed=seed, saves=False, checkpoint=0)
    return generate(parse(f"bursty:jobs={jobs},rate=30,burst=4,share=0.2,most=8,spread=1.6"), options), nodes


def mean(chosen: Any, seed: int = 1) -> float:
    """Mean completion time of 120 jobs, in seconds; all end."""
    result = simulate(*stated(jobs=120, seed=seed), chosen)
    assert not result.measures.unfinished
    return sum(result.completions) / len(result.completions)


def test_hostile_networks_cost_at_most_five_percent_and_more_without_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = (HOSTILE, network(7))
    safe, other = mean(policy_named("poise")), mean(policy_named("poise"), seed=2)
    for of in bad:
        assert (mean(policy(of)) / safe + mean(policy(of), seed=2) / other) / 2 <= 1.05
    monkeypatch.setattr("poise.policy.learned.LEAST_WORTH", 0.0)
    monkeypatch.setattr("poise.policy.learned.BUDGET", 1e9)
    assert mean(policy(HOSTILE)) > 1.05 * safe


def test_a_file_of_weights_is_read_as_it_was_written(tmp_path: Path) -> None:
    of = network(5)
    write_weights(tmp_path / "ours.npz", of)
    assert read_weights(tmp_path / "ours.npz") == of
    (tmp_path / "ours.yaml").write_text("{kind: policy, name: ours, extends: poise, weights: ours.npz}\n")
    choice = choose(str(tmp_path / "ours.yaml"))
    assert choice.recipe is not None
    assert choice.recipe.network == of
    began = Began(at=1, term=1, history=1, version="", policy=choice.label, recipe=msgspec.to_builtins(choice.recipe))
    assert isinstance(shipped(began), Learned)  # a replay needs no file


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ours.npz"
    write_weights(path, network(5))
    with np.load(path) as found:
        arrays = dict(found)
    arrays["pick_bias"] = arrays["pick_bias"] + 1
    np.savez(path, **arrays)
    with pytest.raises(SpecError, match="do not have its digest"):
        read_weights(path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(SpecError, match="not a file of weights"):
        read_weights(path)
    np.savez(path, **{name: array for name, array in arrays.items() if name != "pick"})
    with pytest.raises(SpecError, match="not a file of weights"):
        read_weights(path)
    with pytest.raises(SpecError, match="cannot be read"):
        with_weights({"weights": "none.npz"}, tmp_path)


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': %s, }\n"
Damage = Callable[[Path], object]


def repacked(how: int, **changed: bytes) -> Damage:
    """Give members other content, and pack all of them anew."""

    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as packed:
            members = {name: packed.read(name) for name in packed.namelist()}
        with zipfile.ZipFile(path, "w", how) as packed:
            for name, content in (members | {f"{name}.npy": content for name, content in changed.items()}).items():
                packed.writestr(name, content)

    return damage


def array(**changed: Any) -> Damage:
    """Replace arrays, by name."""

    def save(value: Any) -> bytes:
        buffer = io.BytesIO()
        np.save(buffer, np.array(value))
        return buffer.getvalue()

    return repacked(zipfile.ZIP_STORED, **{name: save(value) for name, value in changed.items()})


def header(text: str) -> Damage:
    """Give an array another header."""
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    return repacked(zipfile.ZIP_STORED, low=start + text.encode() + bytes(8))


def broken(how: int) -> Damage:
    """Compress the members and overwrite them."""

    def damage(path: Path) -> None:
        repacked(how)(path)
        content = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as packed:
            for member in packed.infolist():
                begin = member.header_offset + 30 + len(member.filename)
                content[begin : begin + member.compress_size] = b"\xff" * member.compress_size
        path.write_bytes(content)

    return damage


def marked(at: int, value: int) -> Damage:
    """Overwrite two bytes of the header of each member, and of its copy at the end of the file."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        for start, ahead in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            for found in re.finditer(re.escape(start), bytes(content)):
                content[found.start() + ahead + at : found.start() + ahead + at + 2] = value.to_bytes(2, "little")
        path.write_bytes(content)

    return damage


def replaced(make: Callable[[Path], None]) -> Damage:
    """Put something else in the place of the file."""

    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        pytest.param(header("{'descr': (((\n"), "no array", id="header"),
        pytest.param(header(HEADER % "(1000000000000,)"), "no array", id="large"),
        pytest.param(header(HEADER % "(1000000,)"), "needs 8,000,000 bytes", id="larger than its content"),
        pytest.param(header(HEADER % f"({10**23},)"), "no array", id="beyond integers"),
        pytest.param(header(HEADER % "(9999999, 0)"), "needs", id="empty rows"),
        pytest.param(repacked(zipfile.ZIP_STORED, low=b"some text"), "no array", id="not an array"),
        pytest.param(broken(zipfile.ZIP_DEFLATED), "not a file of weights", id="deflate"),
        pytest.param(broken(zipfile.ZIP_LZMA), "compressed in another way", id="lzma"),
        pytest.param(marked(0, 1), "encrypted", id="encrypted"),
        pytest.param(marked(2, 99), "compressed in another way", id="unknown compression"),
        pytest.param(array(study_names=5), "not a file of weights", id="scalar names"),
        pytest.param(array(study_names=[["seed"]]), "not a file of weights", id="names in rows"),
        pytest.param(array(study_values=["\ud800"]), "not a file of weights", id="no text"),
        pytest.param(array(low=[float("nan")] * FEATURES), "must be finite", id="nan"),
        pytest.param(array(high=[float("inf")] * FEATURES), "must be finite", id="infinity"),
        pytest.param(replaced(os.mkfifo), "no regular file", id="fifo"),
        pytest.param(replaced(os.mkdir), "directory", id="folder"),
    ],
)
def test_a_hostile_file_is_refused(damage: Damage, why: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.npz"
    write_weights(path, network(5))
    damage(path)
    with pytest.raises(SpecError, match=why):
        read_weights(path)


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_file_that_is_packed_anew_is_read(how: int, tmp_path: Path) -> None:
    path = tmp_path / "ours.npz"
    write_weights(path, network(5))
    repacked(how)(path)
    assert read_weights(path) == network(5)


def test_weights_that_do_not_fit_are_refused() -> None:
    wrongs: list[dict[str, Any]] = [
        {"arrays": {}}, {"low": [0.0]}, {"arrays": network().arrays | {"pick": [[1, 2]]}}
    ]  # fmt: skip
    for wrong in wrongs:
        document = {"kind": "policy", "name": "ours", "weights": msgspec.to_builtins(network()) | wrong}
        with pytest.raises(SpecError, match="the weights are not a network"):
            choose_document(document)
    with pytest.raises(SpecError, match="read where the policy file is"):
        choose_document({"kind": "policy", "name": "ours", "weights": "ours.npz"})


def test_the_shipped_policy_has_weights_and_says_how_they_were_trained() -> None:
    choice = choose("learned")
    assert choice.recipe is not None
    assert choice.recipe.network is not None
    assert choice.recipe.network.study["trace"] == "pollux 1 to 3"
    assert choice.label.startswith("learned@")
    world = World(tried(choice)).nodes(1, gpus=1).job("a", gpu=1).round()
    assert world.where("a")
