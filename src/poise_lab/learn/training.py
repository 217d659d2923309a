"""Train a learned policy: clone `poise`, improve by DQN or PPO in the twin, and compare on other jobs.

The trace is split by time. Episodes for training are drawn from its first half, by the seeds from `seed` on. The
comparison uses draws from the second half, by other seeds; the interval is a bootstrap over draws.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, __version__
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from poise.drivers.plugins import choose_document, tried
from poise.engine.paired import Pairs, compare, no_better
from poise.errors import InputError
from poise.kernel.controller import Settings
from poise.model.resources import Node
from poise.model.workload import Workload
from poise.model.worlds import Row
from poise.policy.network import Network
from poise.policy.suites import POLICIES, ClusterPolicy, Suite
from poise_lab.learn.draws import BLOCK, drawn
from poise_lab.learn.environment import Starts, episode_of
from poise_lab.learn.network import Picks, Scorer, Values
from poise_lab.trial import row_of, simulate

Method = Literal["dqn", "ppo"]

TOLD_FROM = 1_000_000
"""First seed of the draws of the comparison, counted from the seed of the training."""

CLONED_EPISODES = 4
CLONED_EPOCHS = 60
FEWEST_CHOICES = 20
"""Minimum number of choices to clone. With fewer, training would simulate many jobs for each choice."""

MARGIN = 0.1
"""The choice of `poise` gets at least this much more than any other after cloning, as a value of DQN (Hester et al.,
2018, section 4)."""

DISCOUNT = 0.99
"""Discount for each choice."""

RATE = 3e-4
"""Learning rate."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a training: `episodes` training workloads of `jobs` jobs, and
    `told` workloads for the comparison.
    """

    method: Method = "dqn"
    steps: int = 20_000
    episodes: int = 16
    jobs: int = 160
    told: int = 8
    seed: int = 0


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """A trained policy. `cloned` is the part of the `choices` in which the network agreed with `poise` before training.
    `told` compares it with `poise` on other jobs, and `no_better` says why that does not favor it.
    """

    trace: str
    study: Study
    cloned: float
    choices: int
    told: Pairs
    no_better: str
    network: Network
    digest: str
    versions: dict[str, str]


class Ground(NamedTuple):
    """The input of a training: the two halves of a trace, and the fleet."""

    first: Workload
    second: Workload
    nodes: Sequence[Node]
    settings: Settings


def ground_of(workload: Workload, nodes: Sequence[Node], settings: Settings) -> Ground:
    """Split a trace by time. Raises `InputError` if it is too short."""
    arrivals = workload.arrivals
    if len(arrivals) < 4 * BLOCK:
        need, have = f"{4 * BLOCK} jobs or more", f"{len(arrivals)} jobs"
        what, hint = "the trace is too short to learn from", "a longer trace"
        raise InputError(what, field="--trace", need=need, have=have, hint=hint)
    half = len(arrivals) // 2
    halves = [msgspec.structs.replace(workload, arrivals=part) for part in (arrivals[:half], arrivals[half:])]
    return Ground(halves[0], halves[1], nodes, settings)


def learn(ground: Ground, study: Study, watch: Callable[[int], None] = lambda done: None) -> Learnt:
    """Train, and compare. `watch` receives the number of steps done. Single-threaded, so a seed gives one result."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        suite = POLICIES["poise"]
        if not isinstance(suite, Suite):
            raise AssertionError("`poise` is a recipe")
        seeds = range(study.seed, study.seed + study.episodes)
        workloads = [drawn(ground.first, seed, study.jobs) for seed in seeds]
        episodes = [episode_of(one, ground.nodes, suite, ground.settings) for one in workloads]
        world = Starts(episodes, ground.nodes, suite, ground.settings)
        model = _model(study, world)
        scorer: Scorer = _scorer(model)
        cloned, choices = clone(scorer, world, study)
        if study.method == "dqn":
            model.policy.q_net_target.load_state_dict(model.policy.q_net.state_dict())
        model.learn(study.steps, callback=_Watch(watch))
    finally:
        torch.set_num_threads(threads)
    network = Network(
        arrays=scorer.exported(), low=world.low.tolist(), high=world.high.tolist(), study=_in_words(ground, study)
    )
    told = tell(ground, study, policy_with(network))
    return Learnt(
        trace=ground.first.name,
        study=study,
        cloned=cloned,
        choices=choices,
        told=told,
        no_better=no_better(told.jobs, told.figures),
        network=network,
        digest=network.digest(),
        versions={"stable-baselines3": __version__, "torch": str(torch.__version__)},
    )


def document_with(network: Network, name: str = "learned") -> dict[str, Any]:
    """Return the policy file of a network, with its weights inside."""
    return {"kind": "policy", "name": name, "extends": "poise", "weights": msgspec.to_builtins(network)}


def policy_with(network: Network) -> ClusterPolicy:
    """Return the policy of a network."""
    return tried(choose_document(document_with(network)))


def tell(ground: Ground, study: Study, policy: ClusterPolicy, load: float = 1.0) -> Pairs:
    """Compare a policy with `poise` on draws from the second half of the trace."""
    pairs: list[tuple[Row, Row]] = []
    days: list[int] = []
    for number in range(study.told):
        workload = drawn(ground.second, study.seed + TOLD_FROM + number, study.jobs, load)
        sides = []
        for one in (POLICIES["poise"], policy):
            result = simulate(workload, ground.nodes, one, ground.settings)
            sides.append([row_of(job, result.measures.makespan) for job in result.jobs])
        pairs += zip(*sides, strict=True)
        days += [number] * len(sides[0])
    return compare(pairs, days=days, seed=study.seed)


def clone(scorer: Scorer, world: Starts, study: Study) -> tuple[float, int]:
    """Train the scorer to choose as `poise` does. Return the part of choices in which it then agrees, and their
    number.
    """
    seen, chosen = [], []
    for number in range(min(CLONED_EPISODES, study.episodes)):
        observation, _ = world.reset(seed=study.seed, options={"episode": number})
        over = False
        while not over:
            action = world.advice()
            seen.append(observation)
            chosen.append(action)
            observation, _, ended, cut, _ = world.step(np.int64(action))
            over = ended or cut
    if len(chosen) < FEWEST_CHOICES:
        raise InputError(
            "there is nothing to learn: jobs hardly compete for the fleet", field="--trace",
            need=f"{FEWEST_CHOICES} choices in {min(CLONED_EPISODES, study.episodes)} draws", have=str(len(chosen)),
            hint="a longer trace, a smaller fleet, or `--load 2`",
        )  # fmt: skip
    inputs, wanted = torch.tensor(np.array(seen)), torch.tensor(chosen)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=3e-3)
    chance = random.Random(study.seed)  # noqa: S311 what a seed decides is no secret
    rows = list(range(len(chosen)))
    for _ in range(CLONED_EPOCHS):
        chance.shuffle(rows)
        for first in range(0, len(rows), 256):
            some = torch.tensor(rows[first : first + 256])
            scores = scorer(inputs[some])[:, :-1]
            loss = (
                _margin(scores, wanted[some])
                if study.method == "dqn"
                else nn.functional.cross_entropy(scores, wanted[some])
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        agrees = (scorer(inputs)[:, :-1].argmax(dim=1) == wanted).double().mean()
    return float(agrees), len(chosen)


def _margin(scores: Tensor, wanted: Tensor) -> Tensor:
    """Return by how much other actions come within `MARGIN` of the wanted one; the wanted one is near 0."""
    right = scores.gather(1, wanted[:, None])
    above = torch.relu(scores + MARGIN - right).scatter(1, wanted[:, None], 0.0)
    return above.sum(dim=1).mean() + 0.01 * (right**2).mean()


def _model(study: Study, world: Starts) -> Any:
    common: dict[str, Any] = {
        "env": world, "gamma": DISCOUNT, "learning_rate": RATE, "seed": study.seed, "device": "cpu",
        "policy_kwargs": {"features_extractor_class": Scorer, "net_arch": []},
    }  # fmt: skip
    if study.method == "dqn":
        return DQN(
            Values, buffer_size=50_000, learning_starts=500, train_freq=4, gradient_steps=1, batch_size=64,
            target_update_interval=1000, exploration_initial_eps=0.1, exploration_final_eps=0.02, **common,
        )  # fmt: skip
    return PPO(
        Picks, n_steps=min(512, study.steps), batch_size=64, n_epochs=4, ent_coef=0.001, clip_range=0.1, **common
    )


def _scorer(model: Any) -> Scorer:
    policy = model.policy
    found = policy.q_net.features_extractor if isinstance(policy, Values) else policy.features_extractor
    if not isinstance(found, Scorer):
        raise AssertionError("the model scores by another network")
    return found


def _in_words(ground: Ground, study: Study) -> dict[str, str]:
    fields = {name: str(value) for name, value in msgspec.to_builtins(study).items()}
    return {"trace": ground.first.name, **fields, "stable-baselines3": __version__, "torch": str(torch.__version__)}


class _Watch(BaseCallback):
    def __init__(self, watch: Callable[[int], None]) -> None:
        super().__init__()
        self._watch = watch

    def _on_step(self) -> bool:
        self._watch(self.num_timesteps)
        return True
