"""What is seen of a training run step by step, and what tells its phase from that.

Losses and norms are in the units that the run itself has: nothing here depends on their scale.
"""

import msgspec

from poise.model.training import Phase


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step showed: its number from 0, the mean loss, the norm of its gradient before the optimizer (negative:
    not measured), and the learning rate (0: not known).
    """

    step: int
    loss: float
    norm: float = -1.0
    rate: float = 0.0


class PhaseRules(msgspec.Struct, frozen=True, kw_only=True):
    """What tells phases apart; `poise.policy.phases` says how.

    `window` norms make one variance, which is `loud` above that part of the highest and `quiet` below. The knee is where
    the loss begins to fall at less than `flatter` of the speed before. Fine-tuning begins when less than `left` of all
    that was gained is still to come, and a run begins again when more than `lost` of that is lost. What is seen must
    hold for `hold` of the run's age, and for `least` steps. A rate that drops to less than `dropped` is a new slope.
    """

    window: int = 10
    loud: float = 0.1
    quiet: float = 0.01
    lean: float = 1.05
    flatter: float = 0.25
    left: float = 0.02
    lost: float = 0.25
    doubt: float = 0.4
    hold: float = 0.06
    least: int = 15
    dropped: float = 0.5


class Point(msgspec.Struct, frozen=True, array_like=True):
    """Mean loss of `count` steps, the middle of which is `at`, from where the run began (again)."""

    at: float
    loss: float
    spent: float
    count: int


class Slope(msgspec.Struct, frozen=True, array_like=True):
    """Where the present slope began: at which step, and what was spent before it."""

    step: int = 0
    spent: float = 0.0


class PhaseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of a run; its size is bounded.

    `born` is the step at which the run began, or began again, `seen` the last that was looked at, `changed` the one at
    which it entered the phase. `curve` are means over the whole run since it was born, of `width` steps each, but for
    the newest, which is not full. `start` are its first losses, `recent` the last, `norms` those of the last gradients.
    `jitter` is the mean of what the loss changes by from one step to the next, `loudest` the highest variance of
    norms, `rate` the learning rate. `slope` is where the present slope began: the birth, or a drop of the rate. `since`
    is the step since which what is seen speaks for the next phase.
    """

    phase: Phase = "initial"
    born: int = 0
    seen: int = -1
    changed: int = 0
    width: int = 1
    curve: tuple[Point, ...] = ()
    start: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    jitter: float = 0.0
    loudest: float = 0.0
    rate: float = 0.0
    slope: Slope = Slope()
    spent: float = 0.0
    evidence: float = 0.0


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """The steps since the last view, oldest first, and how many the whole run has (0: not known)."""

    steps: tuple[Step, ...]
    total: int = 0
    rules: PhaseRules = PhaseRules()
    memory: PhaseMemory = PhaseMemory()


class PhaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The phase after the last step of the view, and the changes within it: at which step, to which phase."""

    phase: Phase
    memory: PhaseMemory
    changes: tuple[tuple[int, Phase], ...] = ()
