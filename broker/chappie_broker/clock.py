"""How the broker writes times: ISO 8601 UTC with milliseconds."""

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """`seconds` since the epoch."""
    return (
        datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        + f"{int(seconds * 1000) % 1000:03d}Z"
    )
