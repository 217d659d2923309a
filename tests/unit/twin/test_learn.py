"""Learning: an environment that Gymnasium accepts and that acts as the policy does, and a training that repeats."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from poise.cli.main import main
from poise.decoding import convert
from poise.drivers.plugins import choose
from poise.errors import Conflict, InputError
from poise.kernel.controller import Settings
from poise.policy.learned import SLOTS
from poise.policy.suites import POLICIES, Suite
from poise_lab.learn.draws import drawn
from poise_lab.trial import simulate
from unit.policy.test_learned import network, picking, policy, stated

pytest.importorskip("stable_baselines3")

from gymnasium.utils.env_checker import check_env

from poise.policy.network import Brain
from poise_lab.cli.learn import apply
from poise_lab.learn.environment import Starts, episode_of
from poise_lab.learn.training import Learnt, Study, ground_of, learn


def poise() -> Suite:
    suite = POLICIES["poise"]
    assert isinstance(suite, Suite)
    return suite


@pytest.fixture(scope="module")
def world() -> Starts:
    workload, nodes = stated(jobs=60)
    episodes = [episode_of(drawn(workload, seed, 40), nodes, poise(), Settings()) for seed in (1, 2)]
    return Starts(episodes, nodes, poise(), Settings())


def played(world: Starts, choose: Any, episode: int = 0) -> tuple[float, int]:
    """Return the sum of rewards of an episode, and the number of choices."""
    observation, _ = world.reset(seed=1, options={"episode": episode})
    total, choices, over = 0.0, 0, False
    while not over:
        observation, reward, over, _, _ = world.step(choose(observation))
        total, choices = total + reward, choices + 1
    return total, choices


def test_gymnasium_accepts_the_environment(world: Starts) -> None:
    check_env(world)


def test_an_episode_under_poise_has_a_return_of_zero(world: Starts) -> None:
    left, choices = played(world, lambda seen: 0)
    assert choices > 5
    assert left == pytest.approx(0.0, abs=1e-6)


def test_the_environment_acts_as_the_policy_does() -> None:
    """So a network that was trained here decides the same live."""
    workload, nodes = stated(jobs=80)
    of = network(3)
    episode = episode_of(workload, nodes, poise(), Settings())
    world = Starts([episode], nodes, poise(), Settings())
    brain = Brain(of)
    world.reset(seed=1)
    total, over = 0.0, False
    while not over:
        assert world.seen is not None
        _, reward, over, _, _ = world.step(np.int64(brain.choose(world.seen).slot + 1))
        total += reward
    live = simulate(workload, nodes, policy(of))
    lost = (episode.mean - sum(live.completions) / len(live.completions)) * len(live.completions) / episode.mean
    assert total == pytest.approx(lost, abs=1e-6)
    assert total != 0.0


def test_what_poise_would_take_is_a_slot_or_none(world: Starts) -> None:
    world.reset(seed=1, options={"episode": 0})
    advice = []
    over = False
    while not over:
        advice.append(world.advice())
        _, _, over, _, _ = world.step(np.int64(advice[-1]))
    assert set(advice) <= set(range(SLOTS + 1))
    assert any(advice)


def test_draws_repeat_by_seed_and_keep_jobs_whole() -> None:
    workload, _ = stated(jobs=100)
    one, again, other = (drawn(workload, seed, 70) for seed in (1, 1, 2))
    assert one == again != other
    assert len(one.arrivals) == 70
    assert [arrival.at for arrival in one.arrivals] == sorted(arrival.at for arrival in one.arrivals)
    assert not any(arrival.name for arrival in one.arrivals)  # a job may be drawn twice
    known = [arrival.units for arrival in workload.arrivals]
    assert all(arrival.units in known for arrival in one.arrivals)
    assert drawn(workload, 1, 70, load=2.0).arrivals[-1].at == pytest.approx(one.arrivals[-1].at / 2, rel=1e-6)


def test_ppo_clones_poise_and_says_how_it_was_trained() -> None:
    workload, nodes = stated(jobs=120)
    ground = ground_of(workload, nodes, Settings())
    told = learn(ground, Study(method="ppo", steps=64, episodes=2, jobs=40, told=1, seed=1))
    assert told.cloned > 0.7
    assert told.told.jobs == 40
    assert told.network.study["method"] == "ppo"
    with pytest.raises(InputError, match="too short"):
        ground_of(drawn(workload, 1, 20), nodes, Settings())


def typed(tmp_path: Path, rate: int) -> list[str]:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("{kind: fleet, nodes: {n: {count: 4, cpu: 64, memory: 256GiB, devices: [{model: T4, count: 4}]}}}")
    trace = f"bursty:jobs=80,rate={rate},burst=4,share=0.2,most=8,spread=1.6"
    return ["learn", "--trace", trace, "--fleet", str(fleet), "--steps", "100", "--draws", "2", "--json"]


def test_the_command_applies_what_is_better_and_refuses_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POISE_HOME", str(tmp_path / "home"))
    outputs = []
    for _ in range(2):
        assert main(typed(tmp_path, rate=60)) == 0
        outputs.append(json.loads(capsys.readouterr().out))
    told = outputs[0]
    assert told == outputs[1]  # the same seed gives the same network
    assert (told["study"]["steps"], told["study"]["method"]) == (100, "dqn")
    found = convert(told, Learnt)
    assert found.digest == found.network.digest()
    path = tmp_path / "ours.yaml"
    with pytest.raises(Conflict, match="is not applied: no"):
        apply(replace(found, no_better="no"), path)
    assert not path.exists()
    apply(replace(found, no_better=""), path)
    choice = choose(str(path))
    assert choice.recipe is not None
    assert choice.recipe.network == found.network
    assert "`poise shadow start" in capsys.readouterr().err


def test_an_idle_fleet_has_nothing_to_learn_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed(tmp_path, rate=1)) == 1
    assert "jobs hardly compete" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_without_its_packages_the_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "poise_lab.learn.training")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert main(typed(tmp_path, rate=60)) == 1
    assert json.loads(capsys.readouterr().out)["error"]["hint"] == "`pip install 'poise-scheduler[learn]'`"


def test_the_worst_action_has_a_negative_return(world: Starts) -> None:
    brain = Brain(picking("worth", -1))

    def worst(observation: Any) -> np.int64:
        return np.int64(brain.choose(world.seen).slot + 1 if world.seen is not None else 0)

    assert played(world, worst)[0] <= 0
