"""The life of a session as the broker sees it: one table, nothing else."""

from enum import StrEnum

from .machine import Table


class Presence(StrEnum):
    """Where the session's agent is."""

    GREETING = "greeting"
    """Known from the store; its agent has not called since the broker started."""
    ONLINE = "online"
    ADRIFT = "adrift"
    """The link closed or two pings were missed; running work may go on there."""
    ENDED = "ended"
    """Said goodbye, or the lease ran out.  It may register again."""


SESSION = Table(
    "session",
    {
        (Presence.GREETING, "registered"): Presence.ONLINE,
        (Presence.GREETING, "link_lost"): Presence.GREETING,  # a socket that never registered it
        (Presence.GREETING, "link_back"): Presence.GREETING,  # its registration is not committed yet
        (Presence.GREETING, "lease_expired"): Presence.ENDED,
        (Presence.GREETING, "ended"): Presence.ENDED,
        (Presence.ONLINE, "registered"): Presence.ONLINE,  # the agent restarted before we noticed
        (Presence.ONLINE, "link_back"): Presence.ONLINE,  # the new socket came before the old one closed
        (Presence.ONLINE, "link_lost"): Presence.ADRIFT,
        (Presence.ONLINE, "lease_expired"): Presence.ENDED,  # its link was closed for good, unannounced
        (Presence.ONLINE, "ended"): Presence.ENDED,
        (Presence.ADRIFT, "link_back"): Presence.ONLINE,
        (Presence.ADRIFT, "registered"): Presence.ONLINE,
        (Presence.ADRIFT, "link_lost"): Presence.ADRIFT,  # a second, stale socket closed
        (Presence.ADRIFT, "lease_expired"): Presence.ENDED,
        (Presence.ADRIFT, "ended"): Presence.ENDED,
        (Presence.ENDED, "registered"): Presence.ONLINE,
        (Presence.ENDED, "link_back"): Presence.ENDED,  # the socket is back, the session is not
        (Presence.ENDED, "link_lost"): Presence.ENDED,
        (Presence.ENDED, "lease_expired"): Presence.ENDED,
        (Presence.ENDED, "ended"): Presence.ENDED,
    },
)
