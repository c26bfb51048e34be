"""The agent programs, driven as a person would: prompt, steer, abort, compact, leave and come back."""

import json
import sqlite3
import subprocess
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.clients.conftest import had
from tests.clients.environments import environment, node_environment
from tests.hosts.rig import SECONDS, Bridge, clean_environment

LINE = 64 * 1024 * 1024


class Call:
    """A tool call in this program's terms."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.as_json = {"name": name, "arguments": arguments}


class Driver:
    """One program in one home directory."""

    name: ClassVar[str]
    tells_exit_codes: ClassVar[bool] = True
    """Does its protocol say that a command failed?"""
    wakes: ClassVar[bool] = False
    """Can ChatGPT begin a turn there?"""
    sees_images: ClassVar[bool] = True
    """Does it give its model images?"""
    named: ClassVar[bool] = True
    """Does each request name its session?"""
    takes_words: ClassVar[bool] = True
    """Do words typed within a turn reach that turn?"""
    undriven: ClassVar[frozenset[str]] = frozenset()
    """What its driver here cannot make it do."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.home = bridge, bridge.home
        self.place = had(partial(environment, "npm", self.name))
        bridge.install(self.name, self.home)
        self.events: list[dict[str, Any]] = []
        self._lines: list[str] = []
        self._process: Process | None = None
        self._scope = anyio.CancelScope()

    @property
    def environment(self) -> Mapping[str, str]:
        path = had(node_environment)["PATH"]
        return clean_environment(HOME=str(self.home), PATH=path, XDG_CONFIG_HOME=str(self.home / ".config"))

    def argv(self, *, resume: bool) -> list[str]:
        raise NotImplementedError

    async def start(self, tasks: anyio.abc.TaskGroup, *, resume: bool = False) -> None:
        self._lines.clear()
        self._process = await anyio.open_process(
            self.argv(resume=resume),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            cwd=self.bridge.work,
        )
        tasks.start_soon(self._listen, self._process)
        await self.ready(resume=resume)

    async def ready(self, *, resume: bool) -> None: ...

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        stream = BufferedByteReceiveStream(process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            while True:
                line = await stream.receive_until(b"\n", LINE)
                self._lines.append(line.decode("utf-8", "replace"))
                with suppress(ValueError):
                    self.events.append(json.loads(line))

    async def send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps(message).encode() + b"\n")

    async def lines(self, wanted: Callable[[str], bool]) -> list[str]:
        """What it printed that is wanted, once there is something."""
        with anyio.fail_after(SECONDS):
            while not (found := [line for line in self._lines if wanted(line)]):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        return found

    async def event(self, **wanted: Any) -> dict[str, Any]:
        """The first event with these values, now or later."""
        with anyio.fail_after(SECONDS):
            while True:
                for event in self.events:
                    if all(event.get(name) == value for name, value in wanted.items()):
                        return event
                await anyio.sleep(0.02)

    async def stop(self) -> None:
        """As when the person closes it."""
        process, self._process = self._process, None
        if process is None:
            return
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            with anyio.move_on_after(5):
                await process.wait()
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(5):
                    await process.wait()
            if process.returncode is None:
                process.kill()
            await process.wait()
            await process.aclose()

    async def prompt(self, text: str) -> None:
        raise NotImplementedError

    async def steer(self, text: str) -> None:
        """Typed while tools run."""
        raise NotImplementedError

    async def abort(self) -> None:
        raise NotImplementedError

    async def compact(self) -> None:
        raise NotImplementedError

    def recorded(self) -> list[tuple[str, str]]:
        """Id and time of each message, call and result in the program's own transcript."""
        raise NotImplementedError

    def recorded_below(self, agent: str) -> list[tuple[str, str]]:
        """The same of a sub-agent."""
        raise NotImplementedError

    def sh(self, command: str) -> Call:
        raise NotImplementedError

    def spawn(self, task: str) -> Call | None:
        """The call that starts a sub-agent."""
        return None

    def image(self, path: str) -> Call:
        raise NotImplementedError


class Pi(Driver):
    name = "pi"
    wakes = True

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        settings = self.home / ".pi" / "agent" / "settings.json"
        chosen = json.loads(settings.read_text(encoding="utf-8"))
        chosen["compaction"] = {"keepRecentTokens": 100}  # else a short session is not worth it
        settings.write_text(json.dumps(chosen), encoding="utf-8")

    def argv(self, *, resume: bool) -> list[str]:
        program = str(self.place / "node_modules/.bin/pi")
        argv = [program, "--offline", "--mode", "rpc", "--model", "chappie/chappie"]
        return [*argv, "-c"] if resume else argv

    async def prompt(self, text: str) -> None:
        await self.send({"type": "prompt", "message": text})

    async def steer(self, text: str) -> None:
        await self.send({"type": "steer", "message": text})

    async def abort(self) -> None:
        await self.send({"type": "abort"})

    async def compact(self) -> None:
        await self.send({"type": "compact"})

    def recorded(self) -> list[tuple[str, str]]:
        (file,) = (self.home / ".pi/agent/sessions").glob("*/*.jsonl")
        told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        roles = ("user", "assistant", "toolResult")
        return [
            (each["id"], each["timestamp"])
            for each in told
            if each["type"] == "message" and each["message"]["role"] in roles
        ]

    def sh(self, command: str) -> Call:
        return Call("bash", {"command": command})

    def image(self, path: str) -> Call:
        return Call("read", {"path": path})


class Codex(Driver):
    name = "codex"

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        base = self.home / ".codex"
        (base / "chappie.config.toml").rename(base / "config.toml")  # an app server takes no profile
        self._number = 0
        self._thread = ""

    def argv(self, *, resume: bool) -> list[str]:
        return [str(self.place / "node_modules/.bin/codex"), "app-server"]

    async def ready(self, *, resume: bool) -> None:
        await self._request("initialize", {"clientInfo": {"name": "tests", "version": "1"}})
        await self.send({"jsonrpc": "2.0", "method": "initialized"})
        rules = {"approvalPolicy": "never", "sandbox": "danger-full-access", "cwd": str(self.bridge.work)}
        if resume:
            await self._request("thread/resume", {"threadId": self._thread, **rules})
        else:
            started = await self._request("thread/start", rules)
            self._thread = started["thread"]["id"]

    async def _request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        await self.send(message)
        reply = await self.event(id=self._number)
        assert "result" in reply, reply
        result: dict[str, Any] = reply["result"]
        return result

    def _input(self, text: str) -> dict[str, Any]:
        return {"threadId": self._thread, "input": [{"type": "text", "text": text}]}

    async def prompt(self, text: str) -> None:
        self._turn = (await self._request("turn/start", self._input(text)))["turn"]["id"]

    async def steer(self, text: str) -> None:
        await self._request("turn/steer", {**self._input(text), "expectedTurnId": self._turn})

    async def abort(self) -> None:
        await self._request("turn/interrupt", {"threadId": self._thread, "turnId": self._turn})

    async def compact(self) -> None:
        await self._request("thread/compact/start", {"threadId": self._thread})

    def recorded(self) -> list[tuple[str, str]]:
        (file,) = (self.home / ".codex/sessions").glob("*/*/*/rollout-*.jsonl")
        told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        items = [(each["timestamp"], each["payload"]) for each in told if each["type"] == "response_item"]
        return [
            (item["id"], at)
            for at, item in items
            if item["type"] in ("function_call", "function_call_output")
            or (item.get("role") == "assistant")
            or (item.get("role") == "user" and not item["content"][0]["text"].startswith(("<", "# AGENTS")))
        ]

    def sh(self, command: str) -> Call:
        return Call("exec_command", {"cmd": command, "yield_time_ms": 30_000})

    def image(self, path: str) -> Call:
        return Call("view_image", {"path": path})


class OpenCode(Driver):
    name = "opencode"
    tells_exit_codes = False
    wakes = True

    def __init__(self, bridge: Bridge) -> None:
        super().__init__(bridge)
        self._server = self._session = ""

    def argv(self, *, resume: bool) -> list[str]:
        program = self.place / "node_modules/opencode-linux-x64/bin/opencode"
        return [str(program), "serve", "--port", "0"]

    @property
    def environment(self) -> Mapping[str, str]:
        return {**super().environment, "XDG_DATA_HOME": str(self.home / ".local/share")}

    async def ready(self, *, resume: bool) -> None:
        (line,) = await self.lines(lambda line: "listening on" in line)
        self._server = line.split()[-1]
        if not resume:
            self._session = (await self._post("/session", {}))["id"]

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        where = f"{self._server}{path}?directory={quote(str(self.bridge.work))}"
        request = urllib.request.Request(  # noqa: S310
            where, json.dumps(body).encode(), {"content-type": "application/json"}
        )

        def send() -> Any:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310
                told = response.read()
                return json.loads(told) if told else None

        return await anyio.to_thread.run_sync(send)

    async def prompt(self, text: str) -> None:
        model = {"providerID": "chappie", "modelID": "chappie"}
        body = {"parts": [{"type": "text", "text": text}], "model": model}
        await self._post(f"/session/{self._session}/prompt_async", body)

    async def steer(self, text: str) -> None:
        await self.prompt(text)

    async def abort(self) -> None:
        await self._post(f"/session/{self._session}/abort", {})

    async def compact(self) -> None:
        body = {"providerID": "chappie", "modelID": "chappie"}
        await self._post(f"/session/{self._session}/summarize", body)

    def recorded(self) -> list[tuple[str, str]]:
        return self.recorded_below(self._session)

    def recorded_below(self, agent: str) -> list[tuple[str, str]]:
        file = self.home / ".local/share/opencode/opencode.db"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            query = "select id, time_created, data from part where session_id = ? order by id"
            rows = database.execute(query, [agent]).fetchall()
        told = [(name, at, json.loads(data)) for name, at, data in rows]
        return [
            (name, datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at % 1000:03}Z")
            for name, at, part in told
            if part["type"] == "tool" or (part["type"] == "text" and part["text"])
        ]

    def sh(self, command: str) -> Call:
        return Call("bash", {"command": command, "description": "for a test"})

    def spawn(self, task: str) -> Call | None:
        return Call("task", {"description": task, "prompt": task, "subagent_type": "general"})

    def image(self, path: str) -> Call:
        return Call("read", {"filePath": str(self.bridge.work / path)})


class Claude(Driver):
    name = "claude"

    def argv(self, *, resume: bool) -> list[str]:
        program = self.place / "node_modules/@anthropic-ai/claude-code-linux-x64/claude"
        argv = [str(program), "-p", "--settings", str(self.home / ".claude/chappie.json"), "--verbose"]
        argv += ["--input-format", "stream-json", "--output-format", "stream-json"]
        argv += ["--permission-mode", "default", "--allowedTools", "Bash,Read"]
        return [*argv, "-c"] if resume else argv

    async def prompt(self, text: str) -> None:
        content = [{"type": "text", "text": text}]
        await self.send({"type": "user", "message": {"role": "user", "content": content}})

    async def steer(self, text: str) -> None:
        await self.prompt(text)

    async def abort(self) -> None:
        request = {"subtype": "interrupt"}
        await self.send({"type": "control_request", "request_id": "stop", "request": request})

    async def compact(self) -> None:
        await self.prompt("/compact")

    def recorded(self) -> list[tuple[str, str]]:
        return self._recorded("*/*.jsonl")

    def recorded_below(self, agent: str) -> list[tuple[str, str]]:
        return self._recorded(f"*/*/subagents/agent-{agent}.jsonl")

    def _recorded(self, pattern: str) -> list[tuple[str, str]]:
        (file,) = (self.home / ".claude/projects").glob(pattern)
        told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [
            (each["uuid"], each["timestamp"])
            for each in told
            if each["type"] in ("user", "assistant") and not each.get("isMeta")
        ]

    def sh(self, command: str) -> Call:
        return Call("Bash", {"command": command, "description": "for a test"})

    def spawn(self, task: str) -> Call | None:
        return Call("Agent", {"description": task, "prompt": task, "run_in_background": False})

    def image(self, path: str) -> Call:
        return Call("Read", {"file_path": str(self.bridge.work / path)})


class Qwen(Driver):
    name = "qwen"
    sees_images = False
    named = False
    takes_words = False
    undriven = frozenset({"abort", "compact"})

    def argv(self, *, resume: bool) -> list[str]:
        argv = [str(self.place / "node_modules/.bin/qwen"), "--auth-type", "openai", "--yolo"]
        argv += ["--input-format", "stream-json", "--output-format", "stream-json"]
        return [*argv, "-c"] if resume else argv

    @property
    def environment(self) -> Mapping[str, str]:
        chosen = (self.home / ".qwen/chappie.env").read_text(encoding="utf-8").splitlines()
        return {**super().environment, **dict(line.split("=", 1) for line in chosen)}

    async def prompt(self, text: str) -> None:
        content = [{"type": "text", "text": text}]
        message = {"role": "user", "content": content}
        await self.send({"type": "user", "session_id": "", "message": message, "parent_tool_use_id": None})

    async def steer(self, text: str) -> None:
        await self.prompt(text)

    def recorded(self) -> list[tuple[str, str]]:
        (file,) = (self.home / ".qwen/projects").glob("*/chats/*.jsonl")
        told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [
            (each["uuid"], each["timestamp"])
            for each in told
            if each["type"] in ("user", "assistant", "tool_result")
        ]

    def sh(self, command: str) -> Call:
        # As it is, it refuses a command that begins with `sleep`.
        return Call("run_shell_command", {"command": f"true; {command}", "is_background": False})

    def image(self, path: str) -> Call:
        return Call("read_file", {"file_path": str(self.bridge.work / path)})


DRIVERS: dict[str, type[Driver]] = {
    "pi": Pi,
    "codex": Codex,
    "opencode": OpenCode,
    "claude": Claude,
    "qwen": Qwen,
}
