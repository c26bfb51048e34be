"""Measures as the text that Prometheus reads (exposition format 0.0.4), and the door's own.  No I/O."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chappie_bridge.wire.owner import Measure, Sample

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_IN_LABEL = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(measures: Iterable[Measure]) -> str:
    """Each name comes once: a measure without samples is left out with its type."""
    lines: list[str] = []
    for measure in measures:
        if not measure.samples:
            continue
        lines.append(f"# HELP {measure.name} {measure.about.translate(_IN_HELP)}")
        lines.append(f"# TYPE {measure.name} {measure.kind}")
        for sample in measure.samples:
            labels = ",".join(f'{key}="{value.translate(_IN_LABEL)}"' for key, value in sample.labels.items())
            lines.append(f"{measure.name}{f'{{{labels}}}' if labels else ''} {sample.value!r}")
    return "".join(f"{line}\n" for line in lines)


_REASONS = {401: "credential", 421: "host", 403: "origin"}


@dataclass(slots=True)
class DoorCount:
    """What came to the HTTP entry."""

    taken: int = 0
    """MCP requests that were let in."""
    under_way: int = 0
    refused: Counter[int] = field(default_factory=Counter[int])
    """By HTTP status."""

    def measures(self) -> tuple[Measure, ...]:
        reasons = tuple(
            Sample(value=self.refused[status], labels={"reason": reason})
            for status, reason in _REASONS.items()
        )
        return (
            Measure(
                name="chappie_http_requests_total",
                kind="counter",
                about="MCP requests that were let in.",
                samples=(Sample(value=self.taken),),
            ),
            Measure(
                name="chappie_http_requests_open",
                kind="gauge",
                about="MCP requests under way.",
                samples=(Sample(value=self.under_way),),
            ),
            Measure(
                name="chappie_http_refused_total",
                kind="counter",
                about="Requests refused at the door, by reason.",
                samples=reasons,
            ),
        )
