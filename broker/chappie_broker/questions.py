"""Questions to the person in a chat: committed before they are told, answered by whoever was shown them.
Decides by wire.question's table; of two changes at once the registry takes one."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import anyio

from chappie_bridge.wire.errors import (
    Executed,
    Overloaded,
    QuestionSkipped,
    RequestClosed,
    UnknownQuestion,
    Unsupported,
)
from chappie_bridge.wire.ids import ConversationId, Mint, QuestionId
from chappie_bridge.wire.overview import AnswerQuestion, RecentQuestion
from chappie_bridge.wire.question import QUESTION, Answer, Asked, Stage, settled, stated, titles
from chappie_bridge.wire.question import Question as Seen
from chappie_bridge.wire.requests import Ask, AssertAsked, OpenSession, QuestionView, Respond
from chappie_bridge.wire.values import AnswerItem, Origin, SessionHead

from .accompany import Company
from .audit import Audit
from .clock import iso
from .deliveries import answer_key
from .dispatch import Dispatch
from .identity import label_of
from .limits import LONGEST_WAIT
from .parking import Parking
from .store.port import Store
from .store.rows import Delivery, DeliveryId, Question
from .storing import storing
from .targets import Targets

ATTEMPTS = 8
"""Changes by others that one change may cross with."""

MAX_SAME = 10_000
"""Requests of tunnels that are known again."""

MAX_SHOWN = 200
"""Characters of an answer in the word that it was given already."""


class Questions:
    """The Switchboard's `ask`, `ask_assert`, `answer`.  Keeps no question in memory: a registry that several
    brokers share, or one life of this broker after another, is all the same."""

    def __init__(
        self,
        dispatch: Dispatch,
        targets: Targets,
        company: Company,
        parking: Parking,
        store: Store,
        audit: Audit,
        *,
        now: Callable[[], float],
        mint: Mint,
    ) -> None:
        self._dispatch, self._targets, self._company, self._parking = dispatch, targets, company, parking
        self._store, self._audit, self._now, self._mint = store, audit, now, mint
        self._limits = dispatch.limits
        self._waiting: dict[QuestionId, set[anyio.Event]] = {}
        self._same: OrderedDict[str, QuestionId] = OrderedDict()

    async def ask(self, request: Ask, conversation: ConversationId | None, origin: Origin) -> QuestionView:
        """:raises Overloaded: too many of the conversation's questions wait.  :raises BadArguments:
        :raises Unsupported: a session asks, whose reader is no person."""
        if origin.kind == "session":
            raise Unsupported("A question is asked in a chat. Agents ask with their own tools.")
        deadline = anyio.current_time() + min(request.wait, LONGEST_WAIT)
        asked = stated(request.asked)
        same = _print(request, origin)
        if same is not None and same in self._same:
            self._company.came_again(origin)
            row = await self._known(self._same[same], conversation, origin)
            return self._view(row, origin)
        self._dispatch.outcomes.settle(origin.id)
        target = OpenSession(session=request.session, caller=request.caller)
        with self._parking():
            async with self._targets.chosen(conversation, target, deadline, change=False) as choice:
                row = self._new(asked, origin, choice.session.head)
                with storing(Executed.NO):
                    waiting = await self._store.open_questions(origin.kind, origin.id)
                    if waiting >= self._limits.open_questions:
                        raise Overloaded("Too many questions of this conversation wait for their answers.")
                    await self._store.save_question(row)
        if same is not None:
            self._same[same] = row.id
            if len(self._same) > MAX_SAME:
                self._same.popitem(last=False)
        self._note(origin, "ask", row, len(row.asked), row.stage)
        return self._view(row, origin)

    async def ask_assert(
        self, request: AssertAsked, conversation: ConversationId | None, origin: Origin
    ) -> QuestionView:
        """:raises QuestionSkipped: no page reported in time; a later answer is still taken."""
        deadline = anyio.current_time() + min(request.wait, self._limits.assert_seconds)
        self._dispatch.outcomes.settle(origin.id)
        with self._parking(), self._news(request.question) as news:
            row = await self._known(request.question, conversation, origin)
            if row.stage is Stage.ASKED:
                with anyio.move_on_at(deadline):
                    await news.wait()
                row = await self._change(row.id, conversation, origin, self._unseen)
        if _seen(row).unseen and row.loaded_at is None:
            raise QuestionSkipped(
                hint="Ask in the text of your reply instead, or go on without an answer. If the question is"
                " shown later, the answer still comes as `webAnswer`.",
                data={"questionId": row.id},
            )
        return self._view(row, origin)

    async def answer(
        self, request: Respond, conversation: ConversationId | None, origin: Origin
    ) -> QuestionView:
        """:raises RequestClosed: somebody else answered since `request.revision`; nothing was changed.

        :raises BadArguments: it does not answer what was asked."""
        row = await self._change(
            request.question, conversation, origin, lambda row: self._responded(row, request)
        )
        if request.loaded or request.answer is not None:
            for waiter in self._waiting.get(row.id, ()):
                waiter.set()
        if request.loaded and row.origin_kind == "conversation":
            self._targets.renew(ConversationId(row.origin), row.session)
        return QuestionView(question=_seen(row))

    async def recent(self, limit: int) -> tuple[RecentQuestion, ...]:
        """Of all conversations, for the owner."""
        with storing(Executed.NO):
            rows = await self._store.recent_questions(limit)
        return tuple(
            RecentQuestion(question=_seen(row), origin=label_of(row.origin_kind, row.origin)) for row in rows
        )

    async def answer_for_owner(self, request: AnswerQuestion) -> QuestionView:
        """As `answer`, in any conversation."""
        with storing(Executed.NO):
            row = await self._store.question(request.question)
        if row is None:
            raise UnknownQuestion
        owner = Origin(kind="shell", id="owner", label="owner", principal=row.principal)
        response = Respond(question=row.id, answer=request.answer, revision=request.revision)
        return await self.answer(response, None, owner)

    # -- changes ---------------------------------------------------------------------------------

    async def _change(
        self,
        question: QuestionId,
        conversation: ConversationId | None,
        origin: Origin,
        change: Callable[[Question], Question],
    ) -> Question:
        """What `change` makes of it, committed; the answer is on its way then."""
        for _ in range(ATTEMPTS):
            row = await self._known(question, conversation, origin)
            after = change(row)
            if after == row:
                return row
            after = replace(after, version=row.version + 1, changed_at=self._now())
            delivery = superseded = None
            if (after.stage, after.revision) != (row.stage, row.revision) and after.answer is not None:
                delivery = self._delivery(after)
                superseded = DeliveryId(answer_key(row.id, row.revision))
                if not self._dispatch.mailroom.holds(row.origin, superseded):
                    superseded = None
            with anyio.CancelScope(shield=True), storing(Executed.UNKNOWN):
                if not await self._store.change_question(after, delivery, superseded):
                    continue
                if delivery is not None:
                    self._post(after, delivery, superseded)
                    self._note(origin, "answer", after, len(after.answer or ""), after.stage)
            return after
        raise Overloaded("Too many change this question at once.")

    def _unseen(self, row: Question) -> Question:
        stage = QUESTION.next(row.stage, "unseen")
        if stage is row.stage:
            return row
        return replace(row, stage=stage, answer=Answer(skipped=True).model_dump_json())

    def _responded(self, row: Question, request: Respond) -> Question:
        after = row
        if request.loaded:
            stage = QUESTION.next(row.stage, "loaded")
            loaded_at = row.loaded_at if row.loaded_at is not None else self._now()
            after = replace(after, stage=stage, loaded_at=loaded_at)
        if request.answer is None:
            return after
        question = _seen(row)
        given = settled(question.asked, request.answer)
        if row.revision > 0 and given == question.answer:
            return after  # the same again
        if request.revision is not None and request.revision != row.revision:
            raise RequestClosed(
                f"This question was answered already: {_told(question)}. Nothing was changed."
            )
        return replace(
            after,
            stage=QUESTION.next(after.stage, "skip" if given.skipped else "answer"),
            revision=row.revision + 1,
            answer=given.model_dump_json(),
        )

    # -- what is told ----------------------------------------------------------------------------

    def _delivery(self, row: Question) -> Delivery | None:
        """None for a shell: it has no later response; `ask_assert` shows the answer."""
        if row.origin_kind == "shell":
            return None
        return Delivery(
            id=DeliveryId(answer_key(row.id, row.revision)),
            origin_kind=row.origin_kind,
            origin=row.origin,
            session=row.session,
            cwd=row.cwd,
            kind="answer",
            status="offered",
            body=AnswerItem(question=_seen(row)).model_dump_json(exclude_none=True),
            created_at=row.changed_at,
        )

    def _post(self, row: Question, delivery: Delivery, superseded: DeliveryId | None) -> None:
        mailroom = self._dispatch.mailroom
        if superseded is not None:
            mailroom.take_back(row.origin, superseded)
        parcel = mailroom.put(row.origin, delivery.id, AnswerItem(question=_seen(row)))
        if parcel is not None:
            parcel.stored = True
        session = self._dispatch.directory.sessions.get(row.session)
        if session is not None:
            session.call_attention()

    def _view(self, row: Question, origin: Origin) -> QuestionView:
        session = self._dispatch.directory.sessions.get(row.session)
        return QuestionView(question=_seen(row), companions=self._company.of(origin, session))

    # -- the rest --------------------------------------------------------------------------------

    def _new(self, asked: Asked, origin: Origin, target: SessionHead) -> Question:
        now = self._now()
        return Question(
            id=self._mint.question(),
            origin_kind=origin.kind,
            origin=origin.id,
            principal=origin.principal,
            session=target.session,
            device=target.device,
            cwd=target.cwd,
            asked=asked.model_dump_json(exclude_defaults=True),
            stage=Stage.ASKED,
            revision=0,
            version=0,
            asked_at=now,
            changed_at=now,
        )

    async def _known(
        self, question: QuestionId, conversation: ConversationId | None, origin: Origin
    ) -> Question:
        """:raises UnknownQuestion: there is none, or it is another's.  A page that its host calls for may not
        say whose chat it is in: then the unguessable id counts."""
        with storing(Executed.NO):
            row = await self._store.question(question)
        if row is None or row.principal != origin.principal:
            raise UnknownQuestion
        if origin.kind != "shell" and (row.origin_kind, row.origin) != (origin.kind, origin.id):
            raise UnknownQuestion
        return row

    @contextmanager
    def _news(self, question: QuestionId) -> Generator[anyio.Event]:
        """Set when a page reports on it."""
        event = anyio.Event()
        waiting = self._waiting.setdefault(question, set())
        waiting.add(event)
        try:
            yield event
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop(question, None)

    def _note(self, origin: Origin, what: str, row: Question, size: int, outcome: str) -> None:
        who = f"{origin.kind}:{origin.id}"
        self._audit.note(who=who, what=what, target=f"{row.session} {row.id}", size=size, outcome=outcome)


def _seen(row: Question) -> Seen:
    return Seen(
        id=row.id,
        session=row.session,
        device=row.device,
        cwd=row.cwd,
        asked=Asked.model_validate_json(row.asked),
        stage=row.stage,
        loaded=row.loaded_at is not None,
        revision=row.revision,
        asked_at=iso(row.asked_at),
        answer=None if row.answer is None else Answer.model_validate_json(row.answer),
    )


def _told(question: Seen) -> str:
    answer = question.answer or Answer(skipped=True)
    if answer.skipped:
        return "skipped"
    text = ", ".join([*titles(question.asked, answer), *([answer.text] if answer.text else [])])
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def _print(request: Ask, origin: Origin) -> str | None:
    """What the same request has in common with itself; None where nothing says that it is the same."""
    if request.tunnel_request is None:
        return None
    parts = (origin.id, request.tunnel_request, request.session or "", request.asked.model_dump_json())
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
