"""Records for deriving the phase of a training run: its steps, and the policy's rules, memory and verdict.

Losses and norms have the units of the run: nothing here depends on their scale.
"""

import msgspec

from poise.model.training import Phase


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step: its number from 0, its loss, the norm of its gradient before the optimizer (negative: not sampled), and
    the learning rate (negative: unknown).
    """

    step: int
    loss: float
    norm: float = -1.0
    rate: float = -1.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of a phase to the training: the sampling interval in steps, the report interval in seconds, and the
    precision (empty: the current one).
    """

    look: int = 4
    tell: float = 1.0
    precision: str = ""


class PhaseRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules of the phases, and their requests; `poise_train.policy.phases` describes their use.

    The variance of `window` norms is loud above the fraction `loud` of the highest, quiet below the fraction `quiet`;
    either changes `left` by the factor `lean`. The knee is where the loss falls at less than `flatter` of its earlier
    speed. Fine-tuning begins when less than `left` of the total gain is still to come, with `doubt` standard errors
    added. It begins at the earliest `rest` times the time of the knee after it. A run begins again when more than
    `lost` of its gain is lost. A sign must last for the fraction `hold` of the run's age, and at least `least` steps. A
    learning rate below `dropped` of the last begins a new slope.
    """

    window: int = 10
    loud: float = 0.1
    quiet: float = 0.01
    lean: float = 1.05
    flatter: float = 0.25
    left: float = 0.02
    rest: float = 1.5
    doubt: float = 0.4
    lost: float = 0.25
    hold: float = 0.06
    least: int = 15
    dropped: float = 0.5
    initial: Pace = Pace()
    convergence: Pace = Pace()
    tuning: Pace = Pace(look=8, tell=5.0, precision="fp32")


class Point(msgspec.Struct, frozen=True, array_like=True):
    """Mean of `count` losses, centred `at` steps after the run began (again); `spent` is the sum of the learning rates
    up to there.
    """

    at: float
    loss: float
    spent: float
    count: int


class Slope(msgspec.Struct, frozen=True, array_like=True):
    """The start of the current slope: its step, and the sum of the learning rates before it."""

    step: int = 0
    spent: float = 0.0


class PhaseMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a run, of limited size.

    `born` is the step at which the run began, or began again, `changed` the one at which it entered the phase, `seen`
    and `judged` the last observed and the last judged step; `count` is the number of observed steps. `curve` has means
    over the run since `born`, of `width` steps each. `start` has its first losses, `recent` the last ones, `norms` the
    last gradient norms. `jitter` is the mean change of the loss between two steps, `loudest` the highest variance of
    norms, `rate` the learning rate, `peak` the highest rate, and `spent` the sum of the rates over all steps. `slope`
    began at `born`, or at the last drop of the rate. `evidence` for the next phase is from 0 to 1.
    """

    phase: Phase = "initial"
    born: int = 0
    changed: int = 0
    seen: int = -1
    judged: int = -1
    count: int = 0
    width: int = 1
    curve: tuple[Point, ...] = ()
    start: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    jitter: float = 0.0
    loudest: float = 0.0
    rate: float = -1.0
    peak: float = -1.0
    spent: float = 0.0
    slope: Slope = Slope()
    evidence: float = 0.0


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """The steps since the last view, oldest first, and the `total` number of steps of the run (0: unknown)."""

    steps: tuple[Step, ...]
    total: int = 0
    rules: PhaseRules = PhaseRules()
    memory: PhaseMemory = PhaseMemory()


class PhaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The phase after the last step of the view, its requests, and the changes within the view: pairs of a step and a
    phase.
    """

    phase: Phase
    pace: Pace
    memory: PhaseMemory
    changes: tuple[tuple[int, Phase], ...] = ()
