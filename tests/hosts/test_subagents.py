"""A sub-agent of a real program: a session under its parent, with a history of its own."""

from pathlib import Path

import pytest

from tests.hosts.rig import ended, results, until, until_status
from tests.hosts.test_hosts import stage

pytestmark = pytest.mark.anyio


async def test_a_sub_agent_is_driven_under_its_parent_and_its_history_is_its_own_transcript(
    tmp_path: Path, name: str
) -> None:
    async with stage(tmp_path, name, settings='subagents = "drive"\n') as on:
        spawn = on.program.spawn("count the files")
        if spawn is None:
            pytest.skip("as we configure it, it has no tool that starts one")
        await on.program.prompt("hello")
        parent = await on.joined()
        begun = await on.chat.call("call", calls=[spawn.as_json])
        assert begun.head["status"] == "asking", begun.texts
        (need,) = (each for each in begun.head["needs"] if each["kind"] == "subagent")
        child = need["sessionId"]
        assert child.startswith(f"{parent}/")
        (row,) = (await on.chat.call("sessions", sessionId=child)).head["sessions"]
        assert row["parent"] == parent

        ran = await on.chat.call("call", sessionId=child, calls=[on.program.sh("echo from below").as_json])
        assert ran.head["sessionId"] == child
        assert "from below" in results(ran)[0].text
        said = await on.chat.call("chat", sessionId=child, text="There are three.")
        assert not said.is_error, said.texts
        over = await ended(on.chat, begun.head["operation"])
        assert over.head["status"] == "done", over.texts
        assert "There are three." in "".join(over.texts)
        await until_status(on.chat, parent, "ready")

        page = await until(
            lambda: on.chat.call("history", sessionId=child, limit=50),
            lambda page: "There are three." in "".join(page.texts),
        )
        entries = [(each["entry"], each["at"]) for each in page.notes("entry")]
        natives = [each for each in entries if "." not in each[0]]
        assert natives == on.program.recorded_below(child.rpartition("/")[2])
        above = await on.chat.call("history", sessionId=parent, limit=50)
        assert not {each[0] for each in entries} & {each["entry"] for each in above.notes("entry")}
