"""The time zone of this machine, by its name.  Changes nothing."""

import os
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from chappie_bridge.wire.errors import BadArguments

LOCALTIME = Path("/etc/localtime")


def zone() -> str:
    """`TZ`, or what the system's own file is a link to, or UTC."""
    known = available_timezones()
    if (given := os.environ.get("TZ", "").removeprefix(":")) in known:
        return given
    parts = LOCALTIME.resolve().parts
    named = "/".join(parts[parts.index("zoneinfo") + 1 :]) if "zoneinfo" in parts else ""
    return named if named in known else "UTC"


def offset(name: str, now: float) -> int:
    """Minutes that the zone is behind UTC at `now` (seconds since the epoch).  :raises BadArguments:"""
    try:
        ahead = datetime.fromtimestamp(now, ZoneInfo(name)).utcoffset()
    except (OSError, ValueError):
        raise BadArguments(f"There is no time zone {name!r}.") from None
    return 0 if ahead is None else -int(ahead.total_seconds()) // 60
