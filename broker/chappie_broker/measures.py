"""What is counted, in the words of Prometheus.  Reads the broker's memory; keeps and decides nothing.

No label takes a value that somebody sends: each comes from a closed list.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from chappie_bridge.wire.owner import Measure, Sample
from chappie_bridge.wire.session import Presence

from .audit import Audit
from .dispatch import Dispatch
from .hub import HubStatistics


def gauge(name: str, about: str, value: float) -> Measure:
    return Measure(name=name, kind="gauge", about=about, samples=(Sample(value=value),))


def counter(name: str, about: str, value: float) -> Measure:
    return Measure(name=name, kind="counter", about=about, samples=(Sample(value=value),))


def by(
    kind: Literal["counter", "gauge"], name: str, about: str, label: str, values: Mapping[str, float]
) -> Measure:
    """One sample for each value of one label."""
    samples = tuple(Sample(value=value, labels={label: key}) for key, value in sorted(values.items()))
    return Measure(name=name, kind=kind, about=about, samples=samples)


def of(dispatch: Dispatch, audit: Audit, *, parked: int, late: float) -> tuple[Measure, ...]:
    """`parked`: requests that wait; `late`: seconds the event loop was behind."""
    sessions = list(dispatch.directory.sessions.values())
    presence = Counter(session.presence.value for session in sessions)
    ends = tuple(
        Sample(value=count, labels={"kind": kind, "outcome": outcome})
        for (kind, outcome), count in sorted(audit.ends.items())
    )
    return (
        Measure(
            name="chappie_operations_total",
            kind="counter",
            about="Operations that ended, by outcome.",
            samples=ends,
        ),
        gauge("chappie_operations_open", "Operations that did not end yet.", dispatch.ledger.open_count),
        gauge(
            "chappie_operations_queued",
            "Operations that wait for their session.",
            sum(len(session.queue) for session in sessions),
        ),
        gauge("chappie_requests_waiting", "Requests that wait in the broker.", parked),
        by(
            "gauge",
            "chappie_sessions",
            "Sessions by state.",
            "state",
            {each.value: presence[each.value] for each in Presence},
        ),
        gauge("chappie_bindings", "Conversations with a session.", dispatch.directory.binding_count),
        gauge(
            "chappie_deliveries_waiting", "Parcels that nobody fetched yet.", dispatch.mailroom.undelivered
        ),
        counter("chappie_transfer_bytes_total", "Bytes of transfers that ended.", audit.moved),
        gauge("chappie_audit_waiting", "Lines of the audit log that are not written yet.", audit.waiting),
        counter("chappie_audit_lost_total", "Lines of the audit log that were dropped.", audit.lost_lines),
        gauge("chappie_loop_late_seconds", "How far the event loop was behind when last looked at.", late),
    )


def of_links(now: HubStatistics) -> tuple[Measure, ...]:
    return (
        gauge("chappie_link_sockets", "Open connections on the link's sockets.", now.sockets),
        gauge("chappie_links", "Links, up or within their lease.", now.links),
        counter("chappie_link_refused_total", "Connections refused at their opening.", now.refused),
    )
