"""Anything at all over the link, from nobody, a paired device, and the owner's own machine: refused or cut,
while another device works.  The composition as it is served, on real sockets."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from chappie_agents.dial import Dial
from chappie_agents.enrol import new_token, pair
from chappie_broker.state import StateDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from chappie_bridge.cli.serving import Serving, serving
from chappie_bridge.config import Settings
from chappie_bridge.wire.batch import Status
from chappie_bridge.wire.ids import InstanceId, SessionId
from chappie_bridge.wire.link import SUBPROTOCOL, Hello, LinkFault, decode, encode, frame, frame_hello
from chappie_bridge.wire.messages import (
    Register,
)
from chappie_bridge.wire.owner import PairDevice
from chappie_bridge.wire.pairing import Pairing
from chappie_bridge.wire.requests import Submit
from chappie_bridge.wire.table import MESSAGES
from chappie_bridge.wire.values import Caller, NewCall, SessionInfo
from tests.peer.siege import megabyte, megabytes
from tests.peer.working import Working
from tests.wire.strategies import json_values, messages

PATIENCE = 30.0
"""Seconds; whatever takes longer never comes."""

GOOD, BAD = SessionId("good"), SessionId("bad")

BOUNDED = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

SENT = {
    role: sorted(name for name, row in MESSAGES.items() if row.sender in (role, "both"))
    for role in ("agent", "caller")
}


class _Faults(logging.Handler):
    """Errors in the log: what nobody expected ends there."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()} {record.exc_info}")


class Target:
    """The broker and the device that works; `throw` is somebody else."""

    def __init__(self, served: Serving, state: StateDirectory, token: str, faults: _Faults) -> None:
        self.served, self._state, self._token, self.faults = served, state, token, faults
        assert served.link is not None
        self.port = int(served.link.rpartition(":")[2])
        self._strangers = 0

    async def say(self, data: bytes) -> bytes:
        """What a stranger gets to read, each from an address of his own: guesses count for it alone."""
        self._strangers += 1
        own = (f"127.1.{self._strangers // 250}.{self._strangers % 250 + 1}", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=own)
        try:
            with anyio.fail_after(PATIENCE), suppress(ConnectionError):
                writer.write(data)
                writer.write_eof()
                return await reader.read()
        finally:
            writer.close()
        return b""

    async def throw(self, pieces: list[str | bytes], role: str | None = None, *, local: bool = False) -> None:
        """`role`: greeted first; None: in place of the greeting.  `local`: from the broker's own machine."""
        async with self._socket(local) as connection:
            reading = asyncio.ensure_future(_replies(connection))
            with suppress(ConnectionClosed):
                if role is not None:
                    await connection.send(_hello(role))
                if role == "agent":
                    info = SessionInfo(id=BAD, agent="builtin", device="bad", cwd="/work")
                    await connection.send(frame(1, 0, encode(Register(request=1, session=info))))
                for piece in pieces:
                    await connection.send(piece)
                with anyio.fail_after(PATIENCE):
                    await (await connection.ping())
        with anyio.fail_after(PATIENCE):
            codes = await reading
        assert "internal" not in codes

    def _socket(self, local: bool) -> Any:
        common: dict[str, Any] = {
            "subprotocols": [Subprotocol(SUBPROTOCOL)],
            "compression": None,
            "close_timeout": 5,
        }
        if local:
            return unix_connect(self._state.socket, **common)
        headers = {"Authorization": f"Bearer {self._token}"}
        return connect(f"ws://127.0.0.1:{self.port}", additional_headers=headers, proxy=None, **common)

    async def works(self) -> None:
        """The other device is there, and nothing went wrong that nobody expected."""
        call = Submit(
            caller=Caller(principal="owner", source="openai", value="v"),
            session=GOOD,
            calls=(NewCall(name="noop", arguments={}),),
        )
        with anyio.fail_after(PATIENCE):
            done = await self.served.broker.call(call)
        assert done.status is Status.DONE
        assert self.faults.seen == []


def _hello(role: Any) -> str:
    return frame_hello(Hello(protocol=1, role=role, instance=InstanceId(f"i_{random.getrandbits(64):x}")))


async def _replies(connection: ClientConnection) -> list[str]:
    """Codes of what was refused."""
    codes = []
    with suppress(ConnectionClosed):
        while True:
            found = json.loads(await connection.recv())
            failure = found.get("refused") or found.get("m", {}).get("failure")
            if failure is not None:
                codes.append(failure["code"])
    return codes


@contextmanager
def _listening(root: Path, portal: BlockingPortal, faults: _Faults) -> Iterator[Target]:
    state = StateDirectory.open(root / "state")
    options = Settings(listen="127.0.0.1:0")
    with state, portal.wrap_async_context_manager(serving(state, options)) as served:
        tokens = []
        for name in ("good", "bad"):
            made = portal.call(served.office.pair, PairDevice(name=name))
            tokens.append(new_token())
            pair(Pairing.parse(made.line), tokens[-1], name)
        assert served.link is not None
        working, link = Working(GOOD), served.link
        dial = portal.call(
            lambda: Dial(link, working, role="agent", instance=InstanceId("i_good"), token=tokens[0])
        )
        running = portal.start_task_soon(dial.run)
        assert working.there.wait(PATIENCE)
        yield Target(served, state, tokens[1], faults)
        running.cancel()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BlockingPortal, Target]]:
    faults = _Faults()
    logging.getLogger().addHandler(faults)
    try:
        root = tmp_path_factory.mktemp("link")
        with start_blocking_portal() as portal, _listening(root, portal, faults) as target:
            portal.call(target.works)
            yield portal, target
    finally:
        logging.getLogger().removeHandler(faults)


# --- what is sent -------------------------------------------------------------------------------

_NUMBERS = st.sampled_from([-1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, 0.5, 1e308])
_HOSTILE = st.one_of(
    _NUMBERS,
    json_values,
    st.sampled_from(
        [GOOD, BAD, "op_none", "q_none", "", "x" * 300, "\x1b[2J\n", "c_1", "session:good", "\0"]
    ),
    st.sampled_from(["chappie://session/good/file/x/y", "file:x", "image:x", "spill:/etc/passwd", "spill:"]),
)
_NEAR = st.sampled_from([GOOD, BAD])


class _Sent(NamedTuple):
    body: dict[str, Any]
    skip: int
    """How far its number is off."""


@st.composite
def _spoiled(draw: st.DrawFn, kind: str) -> _Sent:
    """A message of the union with at most a few of its parts replaced, so that it comes far."""
    body = json.loads(encode(draw(messages(kind))))
    for name in ("session", "caller"):
        if isinstance(body.get(name), str):
            body[name] = draw(_NEAR)
    if isinstance(body.get("caller"), dict):
        body["caller"] |= {"source": "session", "value": draw(_NEAR)}
    if "request" in body:
        body["request"] = draw(st.integers(0, 5) | _NUMBERS)
    if "wait" in body:
        body["wait"] = 0.01
    for _ in range(draw(st.integers(0, 2))):
        place, key = draw(st.sampled_from(_places(body)))
        place[key] = draw(_HOSTILE)
    return _Sent(body, draw(st.sampled_from([0] * 30 + [-1, 1, 2**63])))


def _places(part: Any) -> list[tuple[Any, Any]]:
    keys = list(part) if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
    return [place for key in keys for place in ((part, key), *_places(part[key]))]


def _numbered(sent: list[_Sent], start: int) -> list[str | bytes]:
    frames: list[str | bytes] = []
    for number, each in enumerate(sent, start):
        # What no UTF-8 can say goes as an escape.
        frames.append(frame(number + each.skip, 0, json.dumps(each.body)))
    return frames


def _of(role: str) -> st.SearchStrategy[list[_Sent]]:
    return st.lists(st.sampled_from(SENT[role]).flatmap(_spoiled), min_size=5, max_size=25)


@st.composite
def _mutated(draw: st.DrawFn) -> str | bytes:
    """A good frame in which bytes were changed, cut out or doubled."""
    kind = draw(st.sampled_from(sorted(MESSAGES)))
    data = bytearray(frame(draw(st.integers(1, 3)), 0, encode(draw(messages(kind)))).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 8)))
        data[at:end] = draw(st.binary(max_size=8) | st.just(bytes(data[at:end]) * 2))
    return draw(st.sampled_from([bytes(data), bytes(data).decode("utf-8", "replace")]))


_FRAMES = st.one_of(
    _mutated(),
    st.text(st.characters(codec="utf-8"), max_size=100),
    json_values.map(json.dumps),
    st.binary(max_size=100),
    st.tuples(st.binary(min_size=16, max_size=16), st.binary(max_size=100)).map(b"".join),
    st.fixed_dictionaries(
        {"n": _NUMBERS | st.integers(), "a": _NUMBERS | st.integers(), "m": json_values}
    ).map(json.dumps),
    st.dictionaries(st.sampled_from(["hello", "welcome", "refused", "a", "n"]), _HOSTILE, max_size=2).map(
        json.dumps
    ),
)

_HELLOS = st.fixed_dictionaries(
    {},
    optional={
        "protocol": st.just(1) | _HOSTILE,
        "role": st.sampled_from(["agent", "caller", "broker"]) | _HOSTILE,
        "instance": st.sampled_from(["i_good", "i_x"]) | _HOSTILE,
        "of": _HOSTILE,
        "received": _HOSTILE,
        "version": _HOSTILE,
        "name": _HOSTILE,
    },
).map(lambda hello: json.dumps({"hello": hello}))

_HEADERS = st.sampled_from(
    [
        "Host",
        "Origin",
        "Authorization",
        "Chappie-Token",
        "Chappie-Device",
        "Sec-WebSocket-Key",
        "Upgrade",
        "Connection",
        "Sec-WebSocket-Version",
        "Sec-WebSocket-Protocol",
        "Content-Length",
        "Transfer-Encoding",
    ]
)
_VALUES = st.one_of(
    st.sampled_from(
        [b"127.0.0.1", b"[", b"[::1]:x", b"Pairing AAAA-AAAA", b"Bearer \xff", b"Bearer", b"0" * 64]
    ),
    st.binary(max_size=60).map(lambda value: value.replace(b"\r", b"").replace(b"\n", b"")),
)
_OPENINGS = st.dictionaries(_HEADERS, _VALUES, max_size=4)


def _opening(changed: dict[str, bytes]) -> bytes:
    lines = {
        "Host": b"127.0.0.1",
        "Upgrade": b"websocket",
        "Connection": b"Upgrade",
        "Sec-WebSocket-Key": b"AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": b"13",
        "Sec-WebSocket-Protocol": SUBPROTOCOL.encode(),
        **changed,
    }
    return (
        b"GET / HTTP/1.1\r\n" + b"".join(b"%s: %s\r\n" % (n.encode(), v) for n, v in lines.items()) + b"\r\n"
    )


# --- who sends it -------------------------------------------------------------------------------


@BOUNDED
@given(openings=st.lists(_OPENINGS.map(_opening) | st.binary(max_size=300), min_size=5, max_size=15))
def test_no_stranger_gets_further_than_the_door(
    broker: tuple[BlockingPortal, Target], openings: list[bytes]
) -> None:
    """S14 S18: whatever the opening says, it is no link; and no fault of ours."""
    portal, target = broker
    for opening in openings:
        answer = portal.call(target.say, opening)
        assert not answer.startswith((b"HTTP/1.1 1", b"HTTP/1.1 200", b"HTTP/1.1 50"))
    portal.call(target.works)


@BOUNDED
@given(first=_HELLOS | _FRAMES, more=st.lists(_FRAMES, max_size=3), local=st.booleans())
def test_no_greeting_hurts_another_device(
    broker: tuple[BlockingPortal, Target], first: str | bytes, more: list[str | bytes], local: bool
) -> None:
    """S14 S18: before the Hello, and in its place; also one that takes another's instance."""
    portal, target = broker
    portal.call(lambda: target.throw([first, *more], local=local))
    portal.call(target.works)


@BOUNDED
@given(pieces=st.lists(_FRAMES, min_size=1, max_size=5), role=st.sampled_from(["agent", "caller"]))
def test_no_frame_hurts_another_device(
    broker: tuple[BlockingPortal, Target], pieces: list[str | bytes], role: str
) -> None:
    """S14 S18: text and chunks after the greeting."""
    portal, target = broker
    portal.call(target.throw, pieces, role)
    portal.call(target.works)


@BOUNDED
@given(sent=_of("agent"))
def test_no_message_of_an_agent_hurts_another_device(
    broker: tuple[BlockingPortal, Target], sent: list[_Sent]
) -> None:
    """S11 S14: well formed or nearly, about its own sessions and others', in any order."""
    portal, target = broker
    portal.call(target.throw, _numbered(sent, 2), "agent")
    portal.call(target.works)


@BOUNDED
@given(sent=_of("caller"))
def test_no_request_of_a_device_hurts_another_device(
    broker: tuple[BlockingPortal, Target], sent: list[_Sent]
) -> None:
    """S08 S11 S14: with every handle there is: operations, questions, entries, references, capabilities."""
    portal, target = broker
    portal.call(target.throw, _numbered(sent, 1), "caller")
    portal.call(target.works)


@BOUNDED
@given(sent=_of("caller"))
def test_no_request_of_this_machine_is_a_fault(
    broker: tuple[BlockingPortal, Target], sent: list[_Sent]
) -> None:
    """S14: who may ask for everything gets an answer or a refusal, too."""
    portal, target = broker
    portal.call(lambda: target.throw(_numbered(sent, 1), "caller", local=True))
    portal.call(target.works)


# --- a megabyte of it ---------------------------------------------------------------------------

CPU = 2.0
"""Seconds of processor time for one megabyte, on any machine; bench/siege_link.py has the figure."""


def test_a_megabyte_of_anything_on_the_link_is_read_in_bounded_time() -> None:
    """S14 S22: lists of what does not fit, deep and long and wrong: refused or taken, not counted."""
    slow = []
    for text in megabytes():
        began = time.process_time()
        with suppress(LinkFault):
            decode(text)
        taken = time.process_time() - began
        if taken > CPU:
            slow.append((text[:60], taken))
    assert slow == []


def test_a_list_of_faults_is_not_listed() -> None:
    """S14 S22: the first bad item decides; to tell all of a megabyte would take seconds."""
    body = {"session": GOOD, "approvals": [{}] * 1000}
    with pytest.raises(ValueError, match="validation error") as refused:
        MESSAGES["approvals_waiting"].model.model_validate(body)
    assert refused.value.error_count() < 20


@pytest.mark.parametrize("role", [None, "agent", "caller"])
def test_hostile_megabytes_are_taken_or_cut_and_the_other_device_works(
    broker: tuple[BlockingPortal, Target], role: str | None
) -> None:
    """S14 S22"""
    portal, target = broker
    for number, item in enumerate(("{}", "[", "0", "\0")):
        kind = SENT[role or "agent"][number]
        piece = f'{{"n":1,"a":0,"m":{{"type":"{kind}","request":1,"x":[{megabyte(item)}]}}}}'
        portal.call(target.throw, [piece, piece.encode()], role)
    portal.call(target.works)
    portal.call(target.say, b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000)
    portal.call(target.works)
