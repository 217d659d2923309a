"""The networks of DQN and PPO in PyTorch, and their export as integers."""

from typing import Any

import torch
from gymnasium.spaces import Space
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn

from poise.policy.learned import SLOTS
from poise.policy.network import MOST_WEIGHT, ROOM_FEATURES, SHAPE_FEATURES, UNIT
from poise_lab.learn.environment import WIDTH

HIDDEN = 16
ACTIONS = SLOTS + 1
NEVER = -1e3
"""Score of an empty slot."""


class Scorer(BaseFeaturesExtractor):
    """Scores for leaving and for each slot, and the value of the state: `ACTIONS` numbers and one. One scorer is shared
    by all slots, beside a context that pools them (as in `poise.policy.network.Brain`).
    """

    def __init__(self, space: Space[Any]) -> None:
        super().__init__(space, ACTIONS + 1)
        self.shape = nn.Linear(len(SHAPE_FEATURES), HIDDEN)
        self.room = nn.Linear(HIDDEN + len(ROOM_FEATURES), HIDDEN)
        self.score = nn.Linear(2 * HIDDEN, HIDDEN)
        self.pick = nn.Linear(HIDDEN, 1)
        self.leave = nn.Linear(HIDDEN, 1)
        self.value = nn.Linear(HIDDEN, 1)

    def forward(self, seen: Tensor) -> Tensor:
        slots = seen[:, : SLOTS * WIDTH].reshape(-1, SLOTS, WIDTH)
        taken = slots[:, :, -1:]
        each = torch.relu(self.shape(slots[:, :, :-1]))
        pooled = (each * taken).sum(dim=1) / taken.sum(dim=1).clamp(min=1)
        context = torch.relu(self.room(torch.cat([pooled, seen[:, SLOTS * WIDTH :]], dim=1)))
        both = torch.cat([each, context[:, None].expand_as(each)], dim=2)
        picks = self.pick(torch.relu(self.score(both)))
        picks = torch.where(taken > 0, picks, torch.full_like(picks, NEVER))[:, :, 0]
        return torch.cat([self.leave(context), picks, self.value(context)], dim=1)

    def exported(self) -> dict[str, list[list[int]]]:
        """Return the layers in fixed point, as `poise.policy.network.layers_of` names them."""
        found = {}
        for name in ("shape", "room", "score", "pick", "leave"):
            layer = getattr(self, name)
            for key, values in ((name, layer.weight.T), (f"{name}_bias", layer.bias[None])):
                whole = torch.round(values.detach().double() * UNIT).clamp(-MOST_WEIGHT, MOST_WEIGHT)
                found[key] = whole.long().tolist()
        return found


class Part(nn.Module):
    """A part of the scorer's numbers."""

    def __init__(self, first: int, end: int) -> None:
        super().__init__()
        self._first, self._end = first, end

    def forward(self, scores: Tensor) -> Tensor:
        return scores[:, self._first : self._end]


class Values(DQNPolicy):
    """The policy of DQN: its values of actions are the scores."""

    def make_q_net(self) -> QNetwork:
        made = super().make_q_net()
        made.q_net = nn.Sequential(Part(0, ACTIONS))
        return made


class Picks(ActorCriticPolicy):
    """The policy of PPO: its preferences are the scores, and one scorer gives the value of the state as well."""

    action_net: nn.Module
    value_net: nn.Module  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = Part(0, ACTIONS)
        self.value_net = Part(ACTIONS, ACTIONS + 1)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), eps=1e-5)
