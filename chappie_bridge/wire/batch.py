"""The life of an operation (a batch, a chat, a transfer) as the broker sees it: one table."""

from enum import StrEnum

from .machine import Table


class Status(StrEnum):
    """`lost` never touched the link; `interrupted` may have run."""

    QUEUED = "queued"
    RUNNING = "running"
    ASKING = "asking"
    CANCELLING = "cancelling"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    INTERRUPTED = "interrupted"


OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.ASKING, Status.CANCELLING})
"""What may still change by itself."""

ON_THE_LINK = frozenset({Status.RUNNING, Status.ASKING, Status.CANCELLING})
"""What the agent holds; it keeps the session's queue waiting."""

_S = Status

BATCH = Table(
    "batch",
    {
        (_S.QUEUED, "sent"): _S.RUNNING,
        (_S.QUEUED, "cancel"): _S.CANCELLED,  # it never ran
        (_S.QUEUED, "withdrawn"): _S.LOST,  # the client closed its request
        (_S.QUEUED, "queue_expired"): _S.LOST,
        (_S.QUEUED, "session_gone"): _S.LOST,
        (_S.QUEUED, "refused"): _S.CANCELLED,  # a model request came up before it
        (_S.RUNNING, "asks"): _S.ASKING,
        (_S.RUNNING, "answered"): _S.RUNNING,
        (_S.RUNNING, "cancel"): _S.CANCELLING,
        (_S.RUNNING, "withdrawn"): _S.RUNNING,  # work on a device outlives its request
        (_S.RUNNING, "done"): _S.DONE,
        (_S.RUNNING, "failed"): _S.FAILED,
        (_S.RUNNING, "cancelled"): _S.CANCELLED,  # by the person at the agent
        (_S.RUNNING, "restarted"): _S.INTERRUPTED,  # did it run? we say that we do not know
        (_S.RUNNING, "session_gone"): _S.INTERRUPTED,
        (_S.ASKING, "asks"): _S.ASKING,
        (_S.ASKING, "answered"): _S.RUNNING,
        (_S.ASKING, "cancel"): _S.CANCELLING,
        (_S.ASKING, "withdrawn"): _S.ASKING,
        (_S.ASKING, "done"): _S.DONE,
        (_S.ASKING, "failed"): _S.FAILED,
        (_S.ASKING, "cancelled"): _S.CANCELLED,
        (_S.ASKING, "restarted"): _S.INTERRUPTED,
        (_S.ASKING, "session_gone"): _S.INTERRUPTED,
        (_S.CANCELLING, "cancel"): _S.CANCELLING,
        (_S.CANCELLING, "asks"): _S.CANCELLING,  # crossed with the cancel
        (_S.CANCELLING, "answered"): _S.CANCELLING,
        (_S.CANCELLING, "withdrawn"): _S.CANCELLING,
        (_S.CANCELLING, "done"): _S.DONE,  # it was faster than the cancel
        (_S.CANCELLING, "failed"): _S.FAILED,
        (_S.CANCELLING, "cancelled"): _S.CANCELLED,
        (_S.CANCELLING, "silent"): _S.INTERRUPTED,  # no word for 5 s after the cancel
        (_S.CANCELLING, "restarted"): _S.INTERRUPTED,
        (_S.CANCELLING, "session_gone"): _S.INTERRUPTED,
        # A result that arrives after we gave up is better than our doubt.
        (_S.INTERRUPTED, "done"): _S.DONE,
        (_S.INTERRUPTED, "failed"): _S.FAILED,
        (_S.INTERRUPTED, "cancelled"): _S.CANCELLED,
        (_S.INTERRUPTED, "asks"): _S.INTERRUPTED,
        (_S.INTERRUPTED, "answered"): _S.INTERRUPTED,
        **{
            (final, late): final
            for final in (_S.DONE, _S.FAILED, _S.CANCELLED, _S.LOST, _S.INTERRUPTED)
            for late in ("cancel", "withdrawn", "restarted", "session_gone", "silent", "queue_expired")
        },
        # A duplicate after a replay, or words that crossed with the end.
        **{
            (final, late): final
            for final in (_S.DONE, _S.FAILED, _S.CANCELLED)
            for late in ("done", "failed", "cancelled", "asks", "answered")
        },
    },
)
