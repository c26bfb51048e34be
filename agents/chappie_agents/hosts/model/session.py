"""A session of an agent program: gives it ChatGPT's calls as its model's, and takes its results, its person's
words and its requests for text back.  Opens no socket; `endpoint` holds the connections."""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup, TaskStatus

from chappie_agents.callers import attributed
from chappie_agents.hosts.model.asked import Asked
from chappie_agents.hosts.model.heard import Heard
from chappie_agents.hosts.model.hold import Hold
from chappie_agents.hosts.model.journal import Home, Journal, Memory
from chappie_agents.hosts.model.knowledge import WAKE, Habits, Settings
from chappie_agents.hosts.model.records import Operation, Records
from chappie_agents.hosts.model.shelf import Shelf
from chappie_agents.hosts.model.speaker import Speaker
from chappie_agents.hosts.model.turns import TURN, Given, Phase, compacted, sequel
from chappie_agents.hosts.model.work import Work
from chappie_agents.spool import Spool
from chappie_agents.transcript import Transcript
from chappie_bridge.codec.calling import calls_for
from chappie_bridge.codec.loose import plain
from chappie_bridge.codec.programs import visible
from chappie_bridge.codec.turn import OfferedTool, Outcome, Turn
from chappie_bridge.wire.errors import (
    BridgeError,
    Cancelled,
    Failure,
    Interrupted,
    NotListening,
    Overloaded,
    Unsupported,
)
from chappie_bridge.wire.ids import CallId, Mint, OperationId
from chappie_bridge.wire.messages import (
    Asking,
    Cancel,
    Done,
    Message,
    Notice,
    PostChat,
    RequestEnded,
    RequestOpened,
    RunBatch,
    SessionChanged,
    Settled,
    Typed,
)
from chappie_bridge.wire.ports import Link
from chappie_bridge.wire.values import ModelRequest, Need, SessionInfo, ToolResult

log = logging.getLogger("chappie.model")

MAX_WAITING = 32
"""Operations that wait for the program's next request."""


class ProgramSession:
    """Implements `attendant.Resident`, and `hold.Holder` for the requests of its program."""

    def __init__(
        self,
        home: Home,
        memory: Memory,
        *,
        transcript: Transcript,
        journal: Journal,
        spool: Spool,
        habits: Habits,
        settings: Settings,
        moved: Callable[["ProgramSession"], None],
        now: Callable[[], float],
        mint: Mint,
    ) -> None:
        """Blocks: reads what the last process left.  `moved` is told of every change of `phase`.  `now`:
        seconds since the epoch.

        The session closes `transcript` and `journal` when its `run` ends."""
        self.info = memory.info.model_copy(update={"activity": "idle"})
        self.seen = memory.seen
        """When the program was last heard; seconds since the epoch."""
        self.phase = Phase.IDLE
        self.tools: tuple[OfferedTool, ...] = ()
        """Those of its newest main request that ChatGPT may call."""
        self.directory, self.spool = home.path, spool
        self.minted: tuple[CallId, ...] = memory.given.calls if memory.given else ()
        """Those of the newest batch, finished or not."""
        self._program, self._home, self._journal = memory.program, home, journal
        self._habits, self._settings, self._moved = habits, settings, moved
        self._now, self._mint = now, mint
        self._given = memory.given
        self._heard = Heard(self.info.id, memory.heard)
        self._speaker = Speaker()
        self._work: Work | None = None
        self._waiting: deque[Operation] = deque()
        self._drops = 0
        self._waking = False
        self._stirred = anyio.Event()
        self._one = anyio.Lock()
        self._tasks: TaskGroup
        self._subagents: dict[str, Need] = {}
        self._records = Records(
            lambda: self.info, transcript, journal, spool, self._start, now=now, mint=mint
        )
        self._asked = Asked(self._request_opened, self._request_ended)
        self._shelf = Shelf(
            lambda: self.info,
            lambda: self.tools,
            home.path,
            transcript,
            journal,
            spool,
            habits=habits,
            settings=settings,
            start=self._start,
            now=now,
        )
        self._takes: dict[type[Message], Callable[..., None]] = {
            RunBatch: self._run_batch,
            PostChat: self._post_chat,
            Cancel: self._cancel,
            Settled: self._settled,
            Notice: self._noticed,
            Typed: self._typed,
            **self._shelf.takes,
        }
        self._resume(journal.open_operations(transcript))

    def _resume(self, begun: Iterable[Operation]) -> None:
        for message in begun:
            if self._given is None or self._given.operation != message.operation:
                self._waiting.append(message)
            elif isinstance(message, RunBatch):
                self._work = Work(message, 0.0)
                self.phase = Phase.ANSWERED

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; the program's requests are then left without an answer: it sends them again."""
        try:
            async with anyio.create_task_group() as self._tasks:
                task_status.started()
                self._start(partial(self._habits.follow, self))
                if self._waiting and self.phase is Phase.IDLE:
                    # What the last process had accepted waits for the program to come back.
                    self.phase = Phase.DROPPED
                    self._start(partial(self._grace, self._drops))
                if self._work is not None:
                    self._work.began = anyio.current_time()
                    self._start(partial(self._watch, self._work))
                self._start(self._shelf.tidy)
                await self._records.run()
        finally:
            self._speaker.drop()
            await self._records.close()
            self._shelf.shut()

    # -- what the host calls ---------------------------------------------------------------------

    def known(self) -> tuple[OperationId, ...]:
        return self._journal.known()

    def attached(self, link: Link) -> None:
        self._records.attach(link)
        # It may have changed since it registered.
        self._records.state("session", SessionChanged(session=self.info))
        for request in self._asked.open:
            self._request_opened(request)
        if self._needs():
            self._tell_asking()

    def back(self, link: Link) -> None:
        self._records.back()

    def detached(self) -> None:
        self._records.detach()
        self._shelf.drop()

    def refused(self, failure: Failure) -> None:
        log.error("session %s is not registered: %s", self.info.id, failure.message)

    def received(self, link: Link, message: Message) -> None:
        """:raises Unsupported: for a message that no session takes."""
        take = self._takes.get(type(message))
        if take is None:
            raise Unsupported
        take(link, message)

    def received_chunk(self, link: Link, stream: int, offset: int, data: bytes) -> bool:
        """False: it waits for no such stream."""
        return self._shelf.received_chunk(link, stream, offset, data)

    # -- requests of the program -----------------------------------------------------------------

    async def ask(self, turn: Turn, hold: Hold) -> None:
        """A main request: its results, its person's words, and then it is held."""
        async with self._one:
            self.seen = self._now()
            offered = visible(turn.program, turn.tools, subagents=self._settings.subagents)
            if offered != self.tools:
                self.tools = offered
            self._change(cwd=turn.cwd or self.info.cwd, model=turn.model or None)
            await self._harvest(turn)
            again = await self._follow(turn)
            for name, content in self._heard.fresh(turn):
                if plain(content).strip() != WAKE:
                    await self._records.offer(name, content)
            self._take_hold(turn, hold, again=again)
            self._save()
            self._serve()

    async def ask_beside(self, turn: Turn, hold: Hold) -> None:
        """A request for a summary, or for a title that ChatGPT shall make."""
        async with self._one:
            self.seen = self._now()
            await self._harvest(turn)
            name = self._asked.ask(turn, hold)
        self._start(partial(self._patience, name, hold))

    async def _harvest(self, turn: Turn) -> None:
        """The results of the batch that the program has, if this request shows all of them."""
        work = self._work
        if work is not None and None not in (outcomes := turn.results_of(work.ids)):
            await self._finish_batch(work, outcomes, stopped=bool(turn.aborts))

    async def _follow(self, turn: Turn) -> bool:
        """What the request says of the last answer; True: it did not arrive and is given again."""
        given, work = self._given, self._work
        if given is None:
            return False
        how = sequel(given, turn)
        if how == "again" and (work is not None or (given.text and not self._waiting)):
            return True
        self._given = None
        if work is None:
            return False
        if how == "arrived":
            await self._finish_batch(work, turn.results_of(work.ids), stopped=bool(turn.aborts))
        elif how == "stopped" or (self.phase is Phase.ANSWERED and not compacted(turn)):
            self._work = None
            stopped = Cancelled("The person stopped the turn before the calls arrived; nothing ran.")
            self._records.refuse(work.message, stopped)
        else:
            await self._finish_from_record(work)
        return False

    def _take_hold(self, turn: Turn, hold: Hold, *, again: bool) -> None:
        given = self._given
        same = self._speaker.take(turn, hold, again=again)
        self._advance("again" if same else "asks")
        if again and given is not None and self._speaker.trace is not None:
            self._given = given._replace(trace=self._speaker.trace)
            if given.calls:
                self._give_calls()
            else:
                self._speaker.text(given.text)
                self._advance("text")

    # -- hold.Holder -----------------------------------------------------------------------------

    def written(self, hold: Hold) -> None:
        if hold is self._speaker.hold:
            self._speaker.hold = None
            self.seen = self._now()
            self._advance("written")

    def closed(self, hold: Hold) -> None:
        if hold is not self._speaker.hold:
            return
        self._speaker.hold = None
        self.seen = self._now()
        self._advance("closed")
        if self.phase is Phase.DROPPED:
            self._drops += 1
            self._start(partial(self._grace, self._drops))

    async def _grace(self, drop: int) -> None:
        await anyio.sleep(self._settings.grace)
        if drop == self._drops and self.phase is Phase.DROPPED:
            self._advance("grace_over")
            self._serve()

    async def _patience(self, name: str, hold: Hold) -> None:
        with anyio.move_on_after(self._settings.summary_wait):
            await hold.ended()
            if hold.over:
                await anyio.sleep(self._settings.grace)  # it may ask the same again
            self._asked.given_up(name, hold)
            return
        self._asked.fall_back(name)

    # -- the program's own transcript ------------------------------------------------------------

    def show(self, transcript: Transcript) -> None:
        """From now on history is read from there."""
        self._shelf.show(transcript)

    def stirred(self) -> None:
        """The program wrote something down: it is there."""
        self.seen = self._now()

    # -- operations ------------------------------------------------------------------------------

    def _run_batch(self, link: Link, message: RunBatch) -> None:
        self._accept(message)

    def _post_chat(self, link: Link, message: PostChat) -> None:
        if message.reply_to is None:
            self._accept(attributed(message))
        elif not self._records.repeated(message.operation):
            try:
                self._asked.answer(message.reply_to, message.text)
            except BridgeError as error:
                self._records.refuse(message, error)
            else:
                self._records.finish(message)

    def _accept(self, message: Operation) -> None:
        if self._records.repeated(message.operation):
            return
        try:
            if self._asked.open:
                raise Cancelled("Not executed: the program waits for the answer to a model request.")
            if len(self._waiting) >= MAX_WAITING:
                raise Overloaded("Too much waits for the program's next request.")
            self._records.accept(message)
        except BridgeError as error:
            self._records.refuse(message, error)
            return
        self._waiting.append(message)
        self._serve()

    def _serve(self) -> None:
        """Give the program what waits, as far as it can take it."""
        while self._waiting and self.phase is Phase.HELD:
            self._give(self._waiting.popleft())
        if self._waiting and self.phase is Phase.IDLE and not self._waking:
            self._waking = True
            self._start(self._wake)

    def _give(self, message: Operation) -> None:
        here = self._speaker.trace
        if here is None:
            raise AssertionError("held without a request")
        if isinstance(message, PostChat):
            if message.final:
                self._given = Given(here, message.operation, (), message.text)
                self._speaker.text(message.text)
                self._advance("text")
                self._save()
            else:
                self._speaker.progress(message.text)
            self._records.finish(message)
            return
        try:
            calls_for(self.tools, message.calls)
        except BridgeError as error:
            self._records.refuse(message, error)
            return
        work = self._work = Work(message, anyio.current_time())
        self.minted = work.ids
        self._given = Given(here, message.operation, work.ids)
        self._save()
        self._give_calls()
        self._start(partial(self._watch, work))

    def _give_calls(self) -> None:
        work = self._work
        if work is None:
            return
        try:
            calls = calls_for(self.tools, work.message.calls)
        except BridgeError as error:  # asked again with other tools: it has not got them
            self._given = self._work = None
            self._records.refuse(work.message, error)
            if self.phase is not Phase.HELD:
                self._advance("asks")
            return
        if self.phase is Phase.HELD:
            self._advance("calls")
        self._speaker.calls(calls)

    async def _wake(self) -> None:
        """The program's turn is over: begin another one where that can be, else say what must be done."""
        try:
            if await self._habits.wake(self, WAKE):
                with anyio.move_on_after(self._settings.wake_wait):
                    while self.phase is Phase.IDLE:
                        self._stirred = anyio.Event()
                        await self._stirred.wait()
        finally:
            self._waking = False
        if self.phase is Phase.IDLE:
            hint = self._habits.how_to_listen()
            while self._waiting:
                self._records.refuse(self._waiting.popleft(), NotListening(hint=hint))

    async def _watch(self, work: Work) -> None:
        """A batch with no word for long says so, with what the program's transcript says."""
        told = None
        while True:
            await anyio.sleep(self._settings.no_word)
            evidence = await self._habits.evidence()
            if self._work is not work:
                return
            if evidence == told:
                continue
            told = evidence
            seconds = int(anyio.current_time() - work.began)
            what = (
                f"No word from {self._program} for {seconds} s: it runs the calls, asks the person about "
                "them, or was stopped." + (f" Its transcript says last: {evidence}" if evidence else "")
            )
            work.needs["word"] = Need(kind="prompt", session=self.info.id, what=what)
            self._tell_asking()

    async def _finish_batch(self, work: Work, outcomes: Sequence[Outcome | None], *, stopped: bool) -> None:
        results = await work.results(outcomes, anyio.current_time(), self._records.fitting)
        aborted = any(outcome is not None and outcome.aborted for outcome in outcomes)
        self._conclude(work, results, stopped=stopped or aborted)

    async def _finish_from_record(self, work: Work) -> None:
        """The program's history no longer shows the calls: its transcript may."""
        found = await self._habits.recorded(work.ids)
        if all(name in found for name in work.ids):
            fitting = self._records.fitting
            results = [
                found[name].model_copy(update={"content": await fitting(found[name].content)})
                for name in work.ids
            ]
            self._conclude(work, results, stopped=False)
            return
        self._work = None
        doubt = Interrupted("The program's history no longer shows these calls; look before repeating them.")
        self._records.refuse(work.message, doubt, "interrupted")

    def stopped(self, results: dict[CallId, ToolResult]) -> None:
        """The program's transcript says that the person stopped the calls; `results` stand there, too."""
        work = self._work
        if work is not None and self.phase is Phase.AWAITING:
            self._conclude(work, work.stopped(results), stopped=True)
            self._advance("aborted")
            self._serve()

    def _conclude(self, work: Work, results: Sequence[ToolResult], *, stopped: bool) -> None:
        self._work = None
        for result in results:
            self._shelf.keep(result.content)
        self._records.results(work.message.operation, results)
        error = Cancelled("The person stopped the program while this ran.") if stopped else None
        self._records.finish(
            work.message, status="cancelled" if stopped else "done", count=len(results), error=error
        )

    def _cancel(self, link: Link, message: Cancel) -> None:
        """What the program has not got is taken back; what it runs, only its person can stop."""
        for waiting in self._waiting:
            if waiting.operation == message.operation:
                self._waiting.remove(waiting)
                self._records.refuse(waiting, Cancelled(message.reason))
                return

    def _settled(self, link: Link, message: Settled) -> None:
        self._journal.settle(message.operations, message.inputs)

    # -- needs, activity -------------------------------------------------------------------------

    def subagent(self, session: SessionInfo, *, waits: bool) -> None:
        """A sub-agent of this session waits for ChatGPT, or no longer does."""
        if waits == (session.id in self._subagents):
            return
        if waits:
            what = f"A sub-agent waits: run its work with sessionId {session.id}."
            self._subagents[session.id] = Need(kind="subagent", session=session.id, what=what)
        else:
            del self._subagents[session.id]
        self._tell_asking()

    def _needs(self) -> tuple[Need, ...]:
        if self._work is None:
            return ()
        return (*self._subagents.values(), *self._work.needs.values())

    def _tell_asking(self) -> None:
        if self._work is not None:
            operation = self._work.message.operation
            self._records.tell(Asking(operation=operation, session=self.info.id, needs=self._needs()))
            self._show()

    @property
    def waits(self) -> bool:
        """Does a request of the program wait for ChatGPT?"""
        return self.phase is Phase.HELD

    @property
    def busy(self) -> bool:
        """Is anything under way that a lease must not end?"""
        return self.phase in (Phase.HELD, Phase.DROPPED) or bool(self._waiting or self._asked.open)

    @property
    def calls(self) -> tuple[CallId, ...]:
        """Those that the program has."""
        return self._work.ids if self._work is not None else ()

    def _advance(self, event: str) -> None:
        self.phase = TURN.next(self.phase, event)
        self._stirred.set()
        self._moved(self)
        self._show()

    def _show(self) -> None:
        if self._asked.open:
            activity = "requesting"
        elif self._work is not None:
            activity = "asking" if self._needs() else "executing"
        else:
            activity = "ready" if self.phase is Phase.HELD else "idle"
        self._change(activity=activity)

    def _change(self, **changes: object) -> None:
        info = self.info.model_copy(update=changes)
        if info != self.info:
            self.info = info
            self._records.state("session", SessionChanged(session=info))

    def name(self, title: str) -> None:
        """The program asked for a title, and this is it."""
        self._change(name=title)

    def leave(self) -> None:
        """The program is gone.  What waits did not run; what it has is told if it ever comes back with the
        results, until then the broker knows it as interrupted."""
        self.phase = TURN.next(self.phase, "lease_over")
        if self.phase is not Phase.GONE:
            return
        while self._waiting:
            hint = self._habits.how_to_listen()
            self._records.refuse(self._waiting.popleft(), NotListening(hint=hint))
        self._save(ended=True)

    # -- model requests --------------------------------------------------------------------------

    def _request_opened(self, request: ModelRequest) -> None:
        while self._waiting:
            refused = Cancelled("Not executed: the program waits for the answer to a model request.")
            self._records.refuse(self._waiting.popleft(), refused)
        opened = RequestOpened(session=self.info.id, request=request)
        self._records.state(f"request {request.id}", opened)
        self._show()

    def _request_ended(self, name: str) -> None:
        self._records.state(f"request {name}", RequestEnded(session=self.info.id, request=name))
        self._show()

    # -- other messages --------------------------------------------------------------------------

    def _typed(self, link: Link, message: Typed) -> None:
        async def take() -> None:
            await self._records.offer(self._mint.input(), message.content)
            link.send(Done(request=message.request))

        self._start(take)

    def _noticed(self, link: Link, message: Notice) -> None:
        self._records.note(message.text)

    # -- inside ----------------------------------------------------------------------------------

    def _save(self, *, ended: bool = False) -> None:
        memory = Memory(self.info, self._program, self.seen, self._given, dict(self._heard.all), ended)
        try:
            self._home.write(memory)
        except OSError as error:
            log.error("session %s cannot be kept: %s", self.info.id, error)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:
                log.exception("a task of the session %s failed", self.info.id)

        self._tasks.start_soon(run)
