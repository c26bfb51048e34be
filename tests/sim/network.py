"""Links without sockets: the real Links and the real Dial, and between them a wire that fails as told."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
from chappie_agents.dial import STEADY, Dial
from chappie_broker.links import HubLink, Links
from websockets.frames import CloseCode

from chappie_bridge.wire.endpoint import Endpoint
from chappie_bridge.wire.errors import BridgeError, Failure, Lost, from_failure
from chappie_bridge.wire.ids import DeviceId
from chappie_bridge.wire.link import CHUNK_HEADER, Hello, LinkFault, Welcome, decode, frame_refused

from .clock import Process

if TYPE_CHECKING:
    from chappie_bridge.wire.ports import Attendant, Link

DEAD = 5.0
"""Seconds until a silent connection is noticed: two pings."""

STEP = 1e-6
"""Seconds between two frames: timers of the same moment have no order."""

TWICE = 0.02
"""How many numbered frames come a second time, as after a reconnection that replays too much."""

LOST = frozenset({int(CloseCode.ABNORMAL_CLOSURE)})
GOODBYE = frozenset({int(CloseCode.NORMAL_CLOSURE)})
NONSENSE = frozenset({int(CloseCode.PROTOCOL_ERROR)})


class End:
    """One end of a connection; a `wire.endpoint.Socket`."""

    def __init__(self, wire: "Wire", process: Process) -> None:
        self.wire, self.process = wire, process
        self.other: End
        self.ended = False
        self._last = 0.0

    def write(self, frame: str) -> None:
        self.wire.carry(self, frame)

    async def write_chunk(self, head: bytes, data: bytes) -> None:
        if self.ended:
            raise Lost("The link is down.")
        self.wire.carry(self, head + data)

    def abort(self) -> None:
        self.wire.close(LOST, by=self)

    def arrive(self, frame: str | bytes) -> None:
        if self.ended:
            return
        try:
            if isinstance(frame, str):
                self.text(frame)
            else:
                self.chunk(frame)
        except LinkFault as fault:
            self.wire.broken.append(str(fault))
            self.wire.close(NONSENSE)

    def end(self, codes: frozenset[int]) -> None:
        if not self.ended:
            self.ended = True
            self.closed(codes)

    def text(self, frame: str) -> None:
        raise NotImplementedError

    def chunk(self, data: bytes) -> None:
        raise NotImplementedError

    def closed(self, codes: frozenset[int]) -> None:
        raise NotImplementedError


class HubEnd(End):
    """What `_HubSocket` does once HTTP is out of the way."""

    def __init__(self, wire: "Wire", process: Process, links: Links, device: DeviceId) -> None:
        super().__init__(wire, process)
        self._links, self._device = links, device
        self._link: HubLink | None = None

    def text(self, frame: str) -> None:
        if self._link is None:
            hello = decode(frame)
            assert isinstance(hello, Hello)
            try:
                self._link = self._links.greet(self, self._device, hello)
            except BridgeError as error:
                self.write(frame_refused(error))
                self.wire.close(LOST)
        elif self._link.socket is self:
            _fed(self._link, frame, self.wire)

    def chunk(self, data: bytes) -> None:
        if self._link is not None and self._link.socket is self:
            self._link.feed_chunk(data[:CHUNK_HEADER], data[CHUNK_HEADER:])

    def closed(self, codes: frozenset[int]) -> None:
        if self._link is not None and self._link.detach(self):
            self._links.left(self._link, for_good=codes != LOST)


class DialEnd(End):
    """What `_DialSocket` does once HTTP is out of the way."""

    def __init__(self, wire: "Wire", process: Process, dial: "SimulatedDial") -> None:
        super().__init__(wire, process)
        self._dial = dial
        self._loop = asyncio.get_running_loop()
        self._welcomed_at: float | None = None
        self._ended_at = 0.0
        self.refusal: BridgeError | None = None
        self.greeted, self.over = asyncio.Event(), asyncio.Event()

    @property
    def steady(self) -> bool:
        return self._welcomed_at is not None and self._ended_at - self._welcomed_at >= STEADY

    async def finish(self) -> None:
        self.wire.close(GOODBYE, by=self)
        with anyio.move_on_after(2, shield=True):
            await self.over.wait()

    def text(self, frame: str) -> None:
        if self._welcomed_at is not None:
            if self._dial.socket is self:
                _fed(self._dial, frame, self.wire)
            return
        answer = decode(frame)
        if isinstance(answer, Failure):
            self.refusal = from_failure(answer)
        else:
            assert isinstance(answer, Welcome)
            self._welcomed_at = self._loop.time()
            self._dial._welcomed(self, answer)
            self.greeted.set()

    def chunk(self, data: bytes) -> None:
        if self._dial.socket is self:
            self._dial.feed_chunk(data[:CHUNK_HEADER], data[CHUNK_HEADER:])

    def closed(self, codes: frozenset[int]) -> None:
        self._ended_at = self._loop.time()
        self._dial._closed(self, codes)
        self.greeted.set()
        self.over.set()


def _fed(link: Endpoint, frame: str, wire: "Wire") -> None:
    try:
        link.feed_text(frame)
    except LinkFault:
        raise
    except Exception as error:  # the shells log it and go on
        wire.raised.append(error)


class Wire:
    """One connection.  Each direction keeps its order; all else is the network's."""

    def __init__(self, random: Random, lag: float, broken: list[str], raised: list[BaseException]) -> None:
        self._loop = asyncio.get_running_loop()
        self._random, self._lag = random, lag
        self.ends: tuple[End, End]
        self.broken, self.raised = broken, raised
        self._silent = False
        self._slow_until = 0.0
        self._closing = False

    def join(self, one: End, two: End) -> None:
        one.other, two.other = two, one
        self.ends = one, two

    @property
    def up(self) -> bool:
        return not self._closing

    def carry(self, sender: End, frame: str | bytes) -> None:
        if self._silent or sender.ended:
            return
        receiver = sender.other
        soonest = self._loop.time() + self._random.random() * self._lag
        when = max(soonest, receiver._last + STEP, self._slow_until)
        receiver._last = when
        self._loop.call_at(when, receiver.arrive, frame, context=receiver.process.context)
        if isinstance(frame, str) and frame.startswith('{"n"') and self._random.random() < TWICE:
            receiver._last = when + STEP
            self._loop.call_at(when + STEP, receiver.arrive, frame, context=receiver.process.context)

    def close(self, codes: frozenset[int], *, by: End | None = None) -> None:
        """Both ends hear of it, `by` at once, the other when it does; a goodbye comes after what was said
        before it."""
        if self._closing:
            if by is not None:
                self._loop.call_soon(by.end, LOST, context=by.process.context)
            return
        self._closing = True
        for end in self.ends:
            when = self._loop.time() + (0.0 if end is by else self._random.random() * self._lag)
            if codes == GOODBYE and not self._silent and end is not by:
                when = max(when, end._last + STEP)
            heard = LOST if self._silent and end is not by else codes
            self._loop.call_at(when, end.end, heard, context=end.process.context)

    def cut(self) -> None:
        self.close(LOST)

    def roam(self) -> None:
        """A device came into another network: one end is gone, the other waits for two pings in vain."""
        if self._closing:
            return
        self._closing = self._silent = True
        first = self._random.randrange(2)
        for end, late in ((self.ends[first], 0.0), (self.ends[1 - first], DEAD)):
            self._loop.call_later(late, end.end, LOST, context=end.process.context)

    def silence(self) -> None:
        """Half-open: nothing passes any more, and it takes two pings to notice."""
        if not self._silent:
            self._silent = True
            self._loop.call_later(DEAD, self.cut)

    def slow(self, seconds: float) -> None:
        """Nobody reads for a while."""
        self._slow_until = max(self._slow_until, self._loop.time() + seconds)


class SimulatedLinks(Links):
    """Links whose attendant may not fail: the real one logs that and goes on."""

    raised: "list[BaseException]"

    def _tell(self, what: "Callable[[Link], None]", link: HubLink) -> None:
        try:
            what(link)
        except Exception as error:
            self.raised.append(error)


class SimulatedDial(Dial):
    """A Dial that reaches the broker of the simulation."""

    raised: "list[BaseException]"

    def _tell(self, what: "Callable[[Link], None]") -> None:
        try:
            what(self)
        except Exception as error:
            self.raised.append(error)

    def __init__(self, attendant: "Attendant", reach: Callable[["SimulatedDial"], Any], **more: Any) -> None:
        super().__init__("unix:nowhere", attendant, role="agent", **more)
        self._reach = reach

    async def _open(self) -> Any:
        return await self._reach(self)
