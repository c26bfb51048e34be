"""What becomes of work that nobody waits for any more, of sessions that look alike, and of files."""

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from chappie_bridge.demo.chatgpt import Answer, Chat, ChatGPT
from tests.hosts.programs import DRIVERS
from tests.hosts.rig import PNG, SECONDS, Served, joined, results, until, until_status
from tests.hosts.test_hosts import stage

pytestmark = pytest.mark.anyio

CANCELLED_WITHIN = 10.0
"""Seconds: five of silence, and the way there and back."""


async def deferred(chat: Chat) -> Answer:
    """The first answer that carries an outcome from before.  Costs nothing at the program."""

    async def ask() -> Answer:
        return await chat.call("ask", question="Anything new?")

    return await until(ask, lambda answer: bool(answer.notes("deferredResult")))


async def test_a_cancel_is_answered_soon_and_what_ran_all_the_same_arrives_later(
    tmp_path: Path, name: str
) -> None:
    async with stage(tmp_path, name) as on:
        sh = on.program.sh
        await on.program.prompt("hello")
        await on.joined()
        running = await on.chat.call("call", calls=[sh("sleep 12; echo ran on").as_json], wait=1)
        assert running.head["status"] == "running"
        operation = running.head["operation"]
        with anyio.fail_after(CANCELLED_WITHIN):
            told = await on.chat.call("call", operation=operation, cancel=True)
        # Nobody but the person can stop it there, so nobody knows what it does.
        assert (told.head["status"], told.head["executed"]) == ("interrupted", "unknown"), told.texts
        late = await deferred(on.chat)
        (note,) = late.notes("deferredResult")
        assert (note["deferredResult"], note["status"]) == (operation, "done")
        assert any("ran on" in text for text in late.texts), late.texts
        after = await on.chat.call("call", calls=[sh("echo goes on").as_json])
        assert "goes on" in results(after)[0].text


async def test_the_output_of_an_interrupted_request_comes_with_a_later_response(
    tmp_path: Path, name: str
) -> None:
    async with stage(tmp_path, name) as on:
        await on.program.prompt("hello")
        await on.joined()
        calls = [on.program.sh("echo ran >> once.txt; sleep 4; echo finished anyway").as_json]
        with anyio.move_on_after(2) as left:
            await on.chat.call("call", calls=calls)
        assert left.cancelled_caught
        late = await deferred(on.chat)
        (note,) = late.notes("deferredResult")
        assert note["status"] == "done"
        assert any("finished anyway" in text for text in late.texts), late.texts
        assert (on.bridge.work / "once.txt").read_text(encoding="utf-8") == "ran\n"


async def test_two_terminals_with_the_same_greeting_in_one_directory_are_two_sessions(
    tmp_path: Path, name: str
) -> None:
    async with stage(tmp_path, name) as on:
        other = DRIVERS[name](on.bridge)
        try:
            await other.start(on.tasks)
            await on.program.prompt("hello")
            first = await on.joined()
            await other.prompt("hello")
            there = on.bridge.chatgpt.new_chat()
            second = await joined(there)
            assert first != second
            for chat, session in ((on.chat, first), (there, second)):
                answer = await chat.call("call", calls=[on.program.sh(f"echo in-{session}").as_json])
                assert answer.head["sessionId"] == session
                assert f"in-{session}" in results(answer)[0].text
                page = await until(
                    partial(chat.call, "history", limit=50),
                    lambda page, own=f"in-{session}": any(own in text for text in page.texts),
                )
                strange = first if session == second else second
                assert not any(f"in-{strange}" in text for text in page.texts)
        finally:
            await other.stop()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a web server that gives the files of a directory."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


async def test_files_go_to_a_program_from_it_and_on_to_another_session(tmp_path: Path, name: str) -> None:
    shop, desk = tmp_path / "shop", tmp_path / "desk"
    shop.mkdir()
    desk.mkdir()
    data = bytes(range(256)) * 500
    (shop / "upload.bin").write_bytes(data)
    with served(shop) as address:
        async with stage(tmp_path, name, settings=f'download_hosts = ["{address}"]\n') as on:
            work = on.bridge.work
            await on.program.prompt("hello")
            session = await on.joined()

            file = {"download_url": f"{address}/upload.bin", "file_id": "file_1"}
            taken = await on.chat.call("transfer", files=[file], paths=["in/upload.bin"])
            assert taken.head["status"] == "done", taken.texts
            assert (work / "in" / "upload.bin").read_bytes() == data
            again = await on.chat.call("transfer", files=[file], paths=["in/upload.bin"])
            assert again.is_error  # what is there stays

            given = await on.chat.call("transfer", paths=["in/upload.bin"])
            (link,) = given.links
            assert await _read(on.bridge.chatgpt, link) == data

            (work / "dot.png").write_bytes(PNG)
            seen = await on.chat.call("call", calls=[on.program.image("dot.png").as_json])
            (picture,) = results(seen)
            images = picture.head.get("images", [])
            assert len(images) == picture.images == on.program.sees_images
            shown = [hashlib.sha256(picture.picture).hexdigest() for _ in images]

            arguments = ("agent", "--json", "--state", str(on.bridge.state), "--directory", str(desk))
            agent = Served(*arguments, log=on.bridge.log, home=on.bridge.home)
            try:
                to = {
                    "sessionId": agent.told["session"],
                    "paths": ["there.bin", *["seen.png" for _ in images]],
                }
                moved = await on.chat.call("transfer", paths=["in/upload.bin", *images], to=to)
                assert moved.head["status"] == "done", moved.texts
                assert (desk / "there.bin").read_bytes() == data
                assert [
                    hashlib.sha256(file.read_bytes()).hexdigest() for file in desk.glob("seen.png")
                ] == shown
                back = {"sessionId": agent.told["session"], "paths": ["there.bin"]}
                fetched = await on.chat.call("transfer", paths=["back.bin"], **{"from": back})
                assert fetched.head["status"] == "done", fetched.texts
                assert (work / "back.bin").read_bytes() == data
            finally:
                agent.kill()
            await on.chat.call("chat", text="Done.")
            await until_status(on.chat, session, "idle")
            idle = await on.chat.call("transfer", paths=["dot.png"])  # needs no turn of the program
            (link,) = idle.links
            assert await _read(on.bridge.chatgpt, link) == PNG


async def _read(chatgpt: ChatGPT, link: str) -> bytes:
    with anyio.fail_after(SECONDS):
        (content,) = await chatgpt.read(link)
    return base64.b64decode(str(content["blob"]))
