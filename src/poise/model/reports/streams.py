"""Reports that come in a stream: output, input, commands beside a task."""

import msgspec


class LogPiece(msgspec.Struct, frozen=True, tag="piece", tag_field="kind"):
    """A piece of the output of an attempt of a task. `stream` is `out` or `err`, `offset` the position of the first
    byte (-1: unknown), and `at` the time of writing, in seconds since 1970 (0: unknown). `rank` is the member of a
    gang, if several members are shown (-1: none). A piece without data marks the position where the requested output
    begins. A piece without a task means that these positions are known for all tasks.
    """

    task: str
    epoch: int
    stream: str
    data: bytes
    offset: int = -1
    at: float = 0.0
    rank: int = -1


class LogEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The end of the output: the job is over, or was not followed. `exit_code` is None while the job is unfinished."""

    exit_code: int | None


LogLine = LogPiece | LogEnd


class InputReport(msgspec.Struct, frozen=True):
    """The state of the input of a task. `taken` is the number of bytes that the attempt `epoch` has accepted, and
    `wanted` whether it accepts more. `epoch` is 0 while the task does not run; `taken` is -1 while its node does not
    report. `over` means that the task will not run any more.
    """

    epoch: int = 0
    taken: int = -1
    wanted: bool = True
    over: bool = False


class ExecStarted(msgspec.Struct, frozen=True, tag="started", tag_field="kind"):
    """A command is being started beside a task. `name` identifies it when input is sent to it."""

    name: str


class ExecOutput(msgspec.Struct, frozen=True, tag="output", tag_field="kind"):
    """Bytes that the command wrote to one of its streams, `out` or `err`."""

    stream: str
    data: bytes


class ExecEnd(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The command has ended with this exit code. `note` is the reason, if the command did not end by itself."""

    exit_code: int
    note: str = ""


ExecLine = ExecStarted | ExecOutput | ExecEnd
