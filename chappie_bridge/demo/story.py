"""What the demo shows: a batch, typed input, an approval, a lost reply, a resumed task.  Checks its claims.

Plays against a bridge that runs already; what a person would type comes in as a function.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from chappie_bridge.demo.chatgpt import Answer, ChatGPT, LostAnswer, Refused
from chappie_bridge.demo.tunnel import Tunnel

WITHIN = 30.0
"""Seconds for the whole story; it takes about one."""

TYPED = "Please count the words of it, too."


class Unexpected(Exception):
    """The bridge did not do what the demo is there to show; the text says what it did."""


class Line(NamedTuple):
    """One line of the story; `who` is empty for a scene's title."""

    who: str
    text: str


class Story:
    """`url` and `headers` as `up` tells them; `directory` is where the agent works, with a rule that asks for
    `edit`.  `say` types a line at the agent's terminal; `tell` hears each line as it happens."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        directory: Path,
        *,
        say: Callable[[str], None],
        tell: Callable[[Line], None],
    ) -> None:
        self._tunnel = Tunnel(url, headers)
        self._directory = directory
        self._say = say
        self._tell = tell

    async def play(self) -> str | None:
        """What did not hold, in words; None when all of it did."""
        with anyio.move_on_after(WITHIN):
            async with self._tunnel.open() as address:
                try:
                    await self._scenes(ChatGPT(address))
                except (Unexpected, LostAnswer, Refused) as error:
                    return str(error)
                return None
        return f"The story did not end within {WITHIN:g} s."

    async def _scenes(self, chatgpt: ChatGPT) -> None:
        self._scene("ChatGPT connects through a tunnel that keeps no headers and forgets late replies")
        tools = await chatgpt.connect()
        self._tell(Line("ChatGPT", f"reads the tools: {', '.join(tool['name'] for tool in tools)}"))
        chat = chatgpt.new_chat()
        opened = self._good(await chat.call("init"))
        session = opened.head["initialization"]["sessionId"]
        self._tell(Line("ChatGPT", "init {}"))
        native = ", ".join(tool["name"] for tool in opened.head["tools"])
        self._tell(Line("bridge", f"session {session} in {opened.head['cwd']}, with {native}"))

        self._scene("One batch of native tools")
        calls = [
            {"name": "write", "arguments": {"path": "poem.txt", "content": "two lines\nof a poem\n"}},
            {"name": "bash", "arguments": {"command": "cat poem.txt; wc -c < poem.txt"}},
        ]
        self._tell(Line("ChatGPT", "call: write poem.txt, then bash `cat poem.txt; wc -c < poem.txt`"))
        ran = self._good(await chat.call("call", calls=calls))
        self._show(ran)
        self._holds(ran.head["status"] == "done", "the batch is not done", ran)

        self._scene("Somebody types at the agent")
        newest = self._good(await chat.call("history", limit=1)).notes("entry")[-1]["entry"]
        self._tell(Line("person", TYPED))
        self._say(TYPED)
        self._tell(Line("ChatGPT", "history, waiting for something new"))
        while not (await chat.call("history", after=newest, wait=True)).head["pending"]["inputs"]:
            continue
        counted = self._good(
            await chat.call("call", calls=[{"name": "bash", "arguments": {"command": "wc -w < poem.txt"}}])
        )
        self._holds(TYPED in counted.texts, "the typed words did not come with the result", counted)
        self._tell(Line("bridge", f"gives ChatGPT the next result, and with it: {TYPED!r}"))
        self._good(await chat.call("chat", text="It has five words."))
        self._tell(Line("ChatGPT", "chat: It has five words."))

        self._scene("The owner of the machine is asked, where a rule of theirs says so")
        change = {"path": "poem.txt", "edits": [{"oldText": "two", "newText": "Two"}]}
        self._tell(Line("ChatGPT", "call: edit poem.txt, two → Two"))
        asked = self._good(await chat.call("call", calls=[{"name": "edit", "arguments": change}]))
        self._holds(asked.head["status"] == "asking", "nobody is asked", asked)
        self._tell(Line("bridge", f"answers at once: it waits for {asked.head['needs'][0]['what']}"))
        self._tell(Line("person", "y"))
        self._say("y")
        done = self._good(await chat.call("call", operation=asked.head["operation"]))
        self._holds(done.head["status"] == "done", "the answer changed nothing", done)
        self._tell(Line("ChatGPT", "call {operation}: the edit is done"))

        self._scene("A reply is lost, and the tunnel delivers the same request again")
        self._tunnel.script("redeliver")
        count = {"name": "bash", "arguments": {"command": "echo ran >> runs.txt; cat runs.txt"}}
        self._tell(Line("ChatGPT", "call: bash `echo ran >> runs.txt; cat runs.txt`"))
        again = self._good(await chat.call("call", calls=[count]))
        self._tell(Line("tunnel", "loses the reply and delivers the request a second time"))
        runs = (self._directory / "runs.txt").read_text(encoding="utf-8").count("ran")
        self._holds(runs == 1, f"it ran {runs} times", again)
        self._holds(again.head.get("again") is True, "the second answer does not say `again`", again)
        self._tell(Line("bridge", "gives the first result once more, marked `again`; the command ran once"))
        self._show(again)

        self._scene("A new chat goes on where the first one stopped")
        other = chatgpt.new_chat()
        resumed = self._good(await other.call("init", sessionId=session))
        self._tell(Line("ChatGPT", f"in a new chat: init {{sessionId: {session}}}"))
        selection = resumed.head["selection"]
        self._holds(selection == "explicit", f"the selection is {selection}", resumed)
        past = self._good(await other.call("history", limit=50))
        kinds = [note["kind"] for note in past.notes("entry")]
        self._holds("It has five words." in past.texts, "the first chat's words are missing", past)
        self._tell(Line("ChatGPT", f"history: {len(kinds)} entries of the first chat's work, in order"))
        read = [{"name": "read", "arguments": {"path": "poem.txt"}}]
        self._show(self._good(await other.call("call", calls=read)))

    def _scene(self, title: str) -> None:
        self._tell(Line("", title))

    def _show(self, answer: Answer) -> None:
        """Each call's outcome: its name, its time, the text that follows its header."""
        texts = answer.texts
        for note in answer.notes("toolCallId"):
            at = next(index for index, text in enumerate(texts) if f'"{note["toolCallId"]}"' in text)
            said = texts[at + 1].strip().replace("\n", " ⏎ ") if at + 1 < len(texts) else ""
            self._tell(Line("bridge", f"{note['toolName']} ({note['durationMs']} ms): {said}"))

    def _good(self, answer: Answer) -> Answer:
        self._holds(not answer.is_error, "an error came", answer)
        return answer

    def _holds(self, claim: Any, otherwise: str, answer: Answer) -> None:
        if not claim:
            raise Unexpected(f"{otherwise}: {' '.join(answer.texts)[:1000]}")
