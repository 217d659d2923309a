"""What is seen of a training run step by step, and what tells its phase from that.

Losses and norms are in the units that the run itself has: nothing here depends on their scale.
"""

import msgspec

from poise.model.training import Phase


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step: its number from 0, its loss, the norm of its gradient before the optimizer (negative where it was not
    looked at), and the learning rate (negative where not known).
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
    """Mean of `count` losses, the middle of which is at `at` steps from where the run began (again), when `spent` was
    the sum of the learning rates of its steps.
    """

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

    `born` is the step at which the run began, or began again, `changed` the one at which it entered the phase, `seen`
    and `judged` the last that was seen and judged; `count` is of those seen. `curve` are means over the whole run since
    its birth, of `width` steps each. `start` are its first losses, `recent` the last, `norms` those of the last
    gradients. `jitter` is what the loss changes by from one step to the next, in the mean, `loudest` the highest
    variance of norms, `rate` the learning rate, `peak` the highest, and `spent` its sum over all steps. `slope` began
    at the birth, or when the rate dropped last. `evidence` for the next phase is from 0 to 1.
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
    """The steps since the last view, oldest first, and how many the run has (0: not known)."""

    steps: tuple[Step, ...]
    total: int = 0
    rules: PhaseRules = PhaseRules()
    memory: PhaseMemory = PhaseMemory()


class PhaseVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The phase after the last step of the view, what it asks for, and the changes within the view: at which step, to
    which phase.
    """

    phase: Phase
    pace: Pace
    memory: PhaseMemory
    changes: tuple[tuple[int, Phase], ...] = ()
