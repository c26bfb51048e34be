"""Several sessions behind one link: registered, refused, ended, and each message at its own."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskStatus
from chappie_agents import attendant
from chappie_agents.attendant import AgentHost

from chappie_bridge.wire.errors import Executed, Failure, OpenElsewhere, SessionConflict, Unsupported
from chappie_bridge.wire.ids import OperationId, SessionId
from chappie_bridge.wire.messages import (
    Done,
    Failed,
    Finished,
    Message,
    Notice,
    ReadHistory,
    Register,
    Registered,
    SessionEnded,
    Typed,
    Withdraw,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import SessionInfo
from tests.agents.stage import FakeLink, batch, call, stage

pytestmark = pytest.mark.anyio


class Plain:
    """A session that only notes what it hears."""

    def __init__(self, name: str) -> None:
        self.info = SessionInfo(id=SessionId(name), agent="plain", device="desk", cwd="/")
        self.heard: list[str] = []
        self.fault: Exception | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        self.heard.append("run")
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self.heard.append("stopped")

    def known(self) -> tuple[OperationId, ...]:
        return (OperationId("op_known"),)

    def attached(self, link: Link) -> None:
        self.heard.append("attached")

    def back(self, link: Link) -> None:
        self.heard.append("back")

    def detached(self) -> None:
        self.heard.append("detached")

    def refused(self, failure: Failure) -> None:
        self.heard.append(failure.code)

    def received(self, link: Link, message: Message) -> None:
        if self.fault is not None:
            raise self.fault
        self.heard.append(type(message).__name__)


async def test_every_session_is_registered_on_each_new_broker(tmp_path: Path) -> None:
    host, link = AgentHost(), FakeLink()
    one, two = Plain("one"), Plain("two")
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(one)
        host.link_up(link)
        await host.add(two)
        first, second = link.all(Register)
        assert (first.session, second.session) == (one.info, two.info)
        assert first.known == ("op_known",)
        assert first.request != second.request
        host.received(link, Registered(request=second.request, session=two.info.id))
        assert (one.heard, two.heard) == (["run"], ["run", "attached"])
        host.link_down(link)
        host.link_back(link)
        host.link_gone(link)
        assert two.heard[2:] == ["back", "detached"]
        host.link_up(link)
        assert len(link.all(Register)) == 4
        group.cancel_scope.cancel()
    assert one.heard[-1] == two.heard[-1] == "stopped"


async def test_a_refused_session_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    async with stage(tmp_path, ()) as on:
        other = Plain("other")
        await on.host.add(other)
        link = FakeLink()
        on.host.link_up(link)
        mine, theirs = link.all(Register)
        on.host.received(link, Failed(request=mine.request, failure=SessionConflict().failure()))
        on.host.received(link, Registered(request=theirs.request, session=other.info.id))
        assert on.host.refused[mine.session.id].code == "session_conflict"
        assert on.screen.notices == [
            "Not registered: This session id belongs to another device. Start the agent with `--new`."
        ]
        assert other.heard == ["run", "attached"]


async def test_a_session_that_a_dead_process_holds_is_registered_again_until_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B36: nobody has to start the agent a second time when its predecessor's connection was half-open."""
    monkeypatch.setattr(attendant, "AGAIN", 0.0)
    host, link, session = AgentHost(), FakeLink(), Plain("s")
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(session)
        host.link_up(link)
        for turn in range(1, 4):
            refused = link.all(Register)[-1]
            host.received(link, Failed(request=refused.request, failure=OpenElsewhere().failure()))
            with anyio.fail_after(5):
                while len(link.all(Register)) == turn:
                    await anyio.lowlevel.checkpoint()
        host.received(link, Registered(request=link.all(Register)[-1].request, session=session.info.id))
        group.cancel_scope.cancel()
    assert session.heard == ["run", *["session_conflict"] * 3, "attached", "stopped"]


async def test_messages_reach_their_own_session_and_withdrawals_all() -> None:
    host, link = AgentHost(), FakeLink()
    one, two = Plain("one"), Plain("two")
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(one)
        await host.add(two)
        host.received(link, Notice(session=two.info.id, text="x"))
        host.received(link, Withdraw(request=9))
        assert (one.heard, two.heard) == (["run", "Withdraw"], ["run", "Notice", "Withdraw"])
        group.cancel_scope.cancel()


async def test_a_message_for_nobody_is_answered_in_its_own_way() -> None:
    host, link = AgentHost(), FakeLink()
    host.received(link, ReadHistory.model_validate({"request": 3, "session": "s", "range": {}}))
    host.received(link, batch(call("say", text="x")))
    host.received(link, Notice(session=SessionId("s"), text="x"))
    failed, finished = link.sent
    assert isinstance(failed, Failed)
    assert (failed.request, failed.failure.code) == (3, "unknown_session")
    assert isinstance(finished, Finished)
    assert (finished.status, finished.executed) == ("failed", Executed.NO)


async def test_a_fault_in_a_session_is_answered_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    host, link = AgentHost(), FakeLink()
    one = Plain("one")
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        await host.add(one)
        for fault, code in ((RuntimeError("secret"), "internal"), (Unsupported(), "unsupported")):
            one.fault = fault
            host.received(link, Typed(request=4, session=one.info.id, content=()))
            failed = link.sent[-1]
            assert isinstance(failed, Failed)
            assert failed.failure.code == code
            assert "secret" not in failed.failure.message
        group.cancel_scope.cancel()


async def test_a_session_that_ends_is_stopped_and_the_broker_is_told() -> None:
    host, link = AgentHost(), FakeLink()
    one = Plain("one")
    async with anyio.create_task_group() as group:
        await group.start(host.run)
        host.link_up(link)
        await host.add(one)
        host.end(one.info.id)
        assert link.all(SessionEnded) == [SessionEnded(session=one.info.id)]
        await anyio.wait_all_tasks_blocked()
        assert one.heard == ["run", "detached", "stopped"]
        host.received(link, Typed(request=4, session=one.info.id, content=()))
        assert isinstance(link.sent[-1], Failed)
        assert not link.all(Done)
        group.cancel_scope.cancel()
