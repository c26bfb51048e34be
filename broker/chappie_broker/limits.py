"""Every bound and patience of the broker, in one place.  Seconds, bytes, counts."""

from dataclasses import dataclass

LONGEST_WAIT = 49.0
"""Seconds a request may wait here, so that its answer begins within the 50 that callers allow."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Defaults are SPEC's.  The configuration may change them; nothing else may."""

    session_wait: float = 30.0
    """How long `init` waits for a first session when nothing is online."""
    offline_grace: float = 5.0
    """How long a request waits for a known session whose device is not connected."""
    stale_after: float = 14 * 86400.0
    """Silence after which a conversation's binding no longer keeps its session taken."""
    cooldown: float = 20.0
    """Participation window; 0 switches it off."""
    queue_session: int = 32
    queue_caller: int = 8
    queue_seconds: float = 600.0
    cancel_silence: float = 5.0
    """After a cancel the queue goes on when the device said nothing for so long."""
    keep_results: float = 86400.0
    """How long outcomes stay readable by `call {operation}`."""
    keep_deliveries: float = 30 * 86400.0
    """How long outcomes and answers wait for a conversation that does not come back."""
    keep_questions: float = 90 * 86400.0
    """After their last change."""
    keep_in_memory: int = 2_000
    """Finished operations kept in memory; older ones are recalled from the agent's journal."""
    keep_in_memory_bytes: int = 64 * 1024 * 1024
    mail_bytes: int = 128 * 1024 * 1024
    """Bodies kept for delivery, over all conversations; above it what was sent longest ago counts as
    arrived, and then the oldest that waits is left to its agent's journal."""
    receipt_seconds: float = 120.0
    """A response on which the gate never reported counts as not sent after so long."""
    companions: int = 8
    companion_bytes: int = 48 * 1024
    """Bodies that accompany one response, as UTF-8; the face trims further, to tokens."""
    assert_seconds: float = 10.0
    """How long `ask_assert` waits for the word that a question is shown."""
    open_questions: int = 64
    """Of one conversation, waiting for the person."""
    ask_seconds: float = 20.0
    """How long an agent may take to describe itself or to read its transcript."""
    sessions: int = 50_000
    """Known at once, those of devices that are away among them."""
    model_requests: int = 256
    """Of one session, open at once."""
    unclaimed_inputs: int = 1_000
    """Typed at a session that no conversation works with; as many as an agent's journal keeps."""
    waiting_requests: int = 20_000
    """Requests parked at once (history waits, joins, `init` waits) over all callers."""
    keep_audit: float = 90 * 86400.0
    audit_lines: int = 200_000
    """Kept in the registry, the newest."""
    audit_queue: int = 10_000
    """Lines that wait to be written; more are counted and dropped."""
