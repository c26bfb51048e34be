"""What the owner alone asks of the broker.  Beside the Switchboard, which serves everybody."""

from collections.abc import Callable
from datetime import UTC, datetime

from chappie_bridge.wire.messages import Done
from chappie_bridge.wire.owner import CodeMade, MakeCode, RedeemCode

from .codes import LIFETIME, OneTimeCodes


class OwnersOffice:
    """Implements `ports.Office`.  `now` gives seconds since the epoch, `clock` seconds that only grow."""

    def __init__(self, *, now: Callable[[], float], clock: Callable[[], float]) -> None:
        self._now = now
        self._codes = OneTimeCodes(clock)

    async def make_code(self, request: MakeCode) -> CodeMade:
        expires = datetime.fromtimestamp(self._now() + LIFETIME, UTC).isoformat(timespec="seconds")
        return CodeMade(code=self._codes.make(request.purpose), expires=expires)

    async def redeem_code(self, request: RedeemCode) -> Done:
        self._codes.redeem(request.purpose, request.code, by=request.by)
        return Done()
