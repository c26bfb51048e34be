"""The way in to the owner's pages: login, cookies, forms, and whom they refuse."""

import re
from typing import Any

import httpx2
import pytest

from chappie_bridge.faces.dashboard.logins import IDLE, MAX_LOGINS, Logins
from chappie_bridge.faces.dashboard.pages import PAGES
from chappie_bridge.faces.dashboard.site import FORM_MAX, Site
from chappie_bridge.wire.errors import Overloaded, RequestClosed, SessionOffline
from chappie_bridge.wire.messages import Decided
from chappie_bridge.wire.overview import AnswerApproval, AnswerQuestion, CancelOperation, ListOperations
from chappie_bridge.wire.owner import ReadAudit, RedeemCode, RevokeDevice
from chappie_bridge.wire.question import Answer
from chappie_bridge.wire.requests import FetchHistory, ListSessions, SessionList
from tests.faces.dashboard.owner import CODE, EVIL, SESSION, Owner, browser, inside, log_in, token

pytestmark = pytest.mark.anyio

ACTIONS = ("cancel", "approve", "answer", "revoke", "logout")


def addresses() -> list[str]:
    """Every route of the site."""
    site = Site(Owner(), Owner(), public_url="", clock=lambda: 0.0)
    return sorted({route.path for route in site._app.routes})


async def test_a_code_is_good_for_one_login() -> None:
    owner = Owner()
    async with browser(owner) as http:
        answer = await log_in(http)
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard")
        assert (await http.get("/dashboard")).status_code == 200
    async with browser(owner) as http:
        replayed = await log_in(http)
        assert replayed.status_code == 403
        assert "not valid" in replayed.text
        assert "set-cookie" not in replayed.headers
        assert (await http.get("/dashboard")).headers["location"] == "/dashboard/login"


async def test_a_link_that_is_only_looked_at_keeps_its_code() -> None:
    owner = Owner()
    async with browser(owner) as http:
        assert (await http.get("/dashboard/login")).status_code == 200
        assert owner.of(RedeemCode) == []
        assert (await log_in(http)).status_code == 303


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites() -> None:
    async with browser(Owner()) as http:
        cookie = (await log_in(http)).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/dashboard"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert CODE not in cookie


async def test_behind_https_the_cookie_is_for_https_alone() -> None:
    async with browser(Owner(), public_url="https://bridge.example") as http:
        theirs = {"Host": "bridge.example", "Origin": "https://bridge.example"}
        answer = await http.post("/dashboard/login", data={"code": CODE}, headers=theirs)
        assert "; Secure" in answer.headers["set-cookie"]


async def test_guesses_are_bounded() -> None:
    owner = Owner()

    async def too_many(request: RedeemCode) -> Any:
        raise Overloaded("Too many wrong codes; wait a minute.")

    owner.on[RedeemCode] = too_many
    async with browser(owner) as http:
        assert (await log_in(http, "x" * 5_000)).status_code == 429


@pytest.mark.parametrize("address", [each for each in addresses() if "/static/" not in each])
async def test_without_a_login_there_is_only_the_way_to_it(address: str) -> None:
    owner = Owner()
    async with browser(owner) as http:
        for method in ("GET", "POST"):
            answer = await http.request(method, address, headers={"Cookie": "chappie-24273=guessed"})
            if address != "/dashboard/login":
                assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")
    assert owner.asked == []


async def test_a_login_ends_when_nobody_uses_it_and_the_oldest_when_there_are_too_many() -> None:
    now = 0.0
    held = Logins(lambda: now)
    first, second = held.open(), held.open()
    now = IDLE
    assert held.find(first, renew=True)
    assert held.find(second, renew=False), "a page that lives by itself is let in"
    now = IDLE + 1
    assert held.find(first, renew=False)
    assert held.find(second, renew=False) is None, "but keeps no login alive"
    for _ in range(MAX_LOGINS):
        held.open()
    assert held.find(first, renew=True) is None


async def test_who_logs_out_is_out() -> None:
    async with inside(Owner()) as http:
        kept = dict(http.cookies)
        answer = await http.post("/dashboard/logout", data={"token": await token(http)})
        assert answer.headers["location"] == "/dashboard/login"
        http.cookies.clear()
        http.cookies.update(kept)
        assert (await http.get("/dashboard")).status_code == 303


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("given", [{}, {"token": ""}, {"token": "guessed"}, {"token": "é"}])
async def test_a_form_without_this_logins_token_does_nothing(action: str, given: dict[str, str]) -> None:
    """S09"""
    owner = Owner()
    async with inside(owner) as http:
        before = len(owner.asked)
        answer = await http.post(f"/dashboard/{action}", data={"operation": "op_1", **given})
        assert answer.status_code == 403
        assert len(owner.asked) == before
        assert (await http.get("/dashboard")).status_code == 200


async def test_the_token_of_another_login_is_not_this_ones() -> None:
    owner = Owner()
    owner.codes.add("another")
    async with inside(owner) as http, browser(owner) as other:
        await log_in(other, "another")
        answer = await http.post("/dashboard/cancel", data={"operation": "op_1", "token": await token(other)})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "http://localhost:24273"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json"}, 415),
    ],
)
async def test_a_page_of_somebody_else_does_nothing(headers: dict[str, str], status: int) -> None:
    """S09: also one on another port of the same host, which the cookie does not keep out."""
    owner = Owner()
    async with inside(owner) as http:
        data = {"operation": "op_1", "token": await token(http)}
        fields = httpx2.QueryParams(data)
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        answer = await http.post("/dashboard/cancel", content=str(fields).encode(), headers=form)
        assert answer.status_code == status
        assert owner.of(CancelOperation) == []


@pytest.mark.parametrize("action", ACTIONS)
async def test_looking_changes_nothing(action: str) -> None:
    """Only POST does."""
    async with inside(Owner()) as http:
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answer = await http.request(method, f"/dashboard/{action}")
            assert answer.status_code == 405
            assert answer.headers["allow"] == "POST"


async def test_a_form_is_bounded() -> None:
    async with inside(Owner()) as http:
        answer = await http.post("/dashboard/answer", data={"text": "x" * FORM_MAX})
        assert answer.status_code == 413
        answer = await http.post("/dashboard/answer", data={f"f{number}": "" for number in range(101)})
        assert answer.status_code == 400


async def test_every_answer_says_what_a_browser_may_do_with_it() -> None:
    async with inside(Owner()) as http:
        for address in addresses():
            if address in ("/dashboard/events", "/dashboard/transcript"):
                continue
            answer = await http.get(address)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy, address
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "same-origin"
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            if "/static/" not in address:
                assert answer.headers["cache-control"] == "no-store", address


@pytest.mark.parametrize("page", PAGES)
async def test_what_devices_and_clients_send_is_text(page: str) -> None:
    """S19: names, paths, output and questions may come from anywhere."""
    async with inside(Owner()) as http:
        answer = await http.get(PAGES[page], params={"id": SESSION} if page == "session" else {})
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "\u202e" not in answer.text
        assert "\x1b" not in answer.text
        if page != "status":
            assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x1b[2J" in answer.text
        scripts = re.findall(r"<script[^>]*>", answer.text)
        assert len(scripts) == 1
        assert "src=" in scripts[0]
        assert not re.search(r"\son\w+=|style=|javascript:", answer.text)


async def test_a_session_is_found_whatever_its_id() -> None:
    owner = Owner()
    async with inside(owner) as http:
        found = re.search(
            r'href="(/dashboard/session\?id=[^"]+)"', (await http.get("/dashboard/sessions")).text
        )
        assert found is not None
        page = await http.get(found[1])
        assert owner.of(FetchHistory)[-1].session == SESSION
        assert owner.of(FetchHistory)[-1].range.observer, "who watches leaves no notice"
        assert "data:image/png;base64,aGk=" in page.text
        assert "image/svg+xml;base64" not in page.text, "only what is an image to a browser"


async def test_of_a_session_that_is_away_the_rest_is_shown() -> None:
    owner = Owner()

    async def away(request: FetchHistory) -> Any:
        raise SessionOffline

    async def none(request: ListSessions) -> SessionList:
        return SessionList(sessions=(), has_more=False)

    owner.on |= {FetchHistory: away, ListSessions: none}
    async with inside(owner) as http:
        page = await http.get("/dashboard/session", params={"id": SESSION})
        assert page.status_code == 200
        assert "not connected" in page.text
        assert "This session is not known." in page.text


async def test_a_bug_is_in_the_log_and_not_on_the_page(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()

    async def bug(request: ListOperations) -> Any:
        raise RuntimeError("a secret of the program")

    async with inside(owner) as http:
        owner.on[ListOperations] = bug
        page = await http.get("/dashboard")
        assert page.status_code == 500
        assert "secret" not in page.text
        assert "a secret of the program" in caplog.text


async def test_an_operation_is_cancelled() -> None:
    owner = Owner()
    async with inside(owner) as http:
        form = {"token": await token(http), "operation": "op_1", "back": "/dashboard/operations?x=1&told=old"}
        answer = await http.post("/dashboard/cancel", data=form)
        assert answer.status_code == 303
        page = await http.get(answer.headers["location"])
        assert "is being cancelled" in page.text
        assert [each.operation for each in owner.of(CancelOperation)] == ["op_1"]


@pytest.mark.parametrize(
    ("answer", "allowed", "scope"),
    [
        ("once", True, "once"),
        ("conversation", True, "conversation"),
        ("directory", True, "directory"),
        ("deny", False, "once"),
    ],
)
async def test_an_approval_is_answered_as_on_the_terminal(answer: str, allowed: bool, scope: str) -> None:
    owner = Owner()
    async with inside(owner) as http:
        form = {"token": await token(http), "session": SESSION, "approval": "ap_1", "answer": answer}
        assert (await http.post("/dashboard/approve", data=form)).status_code == 303
    (asked,) = owner.of(AnswerApproval)
    assert (asked.session, asked.approval, asked.allowed, asked.scope) == (SESSION, "ap_1", allowed, scope)


async def test_who_answers_second_is_told_which_answer_counts() -> None:
    """B53"""
    owner = Owner()

    async def before(request: AnswerApproval) -> Decided:
        return Decided(allowed=False, scope="once", by="terminal")

    owner.on[AnswerApproval] = before
    async with inside(owner) as http:
        form = {"token": await token(http), "session": SESSION, "approval": "ap_1", "answer": "once"}
        answer = await http.post("/dashboard/approve", data=form)
        assert "had been refused elsewhere" in (await http.get(answer.headers["location"])).text


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({"choice": ["0"]}, Answer(selections=(0,))),
        ({"choice": ["1", "0"], "text": "both\r\nof them"}, Answer(selections=(1, 0), text="both\nof them")),
        ({"skip": "1", "choice": ["1"], "text": "a draft"}, Answer(skipped=True)),
    ],
)
async def test_a_question_is_answered(given: dict[str, Any], answer: Answer) -> None:
    owner = Owner()
    async with inside(owner) as http:
        form = {"token": await token(http), "question": "q_1", "revision": "3", **given}
        assert (await http.post("/dashboard/answer", data=form)).status_code == 303
    (asked,) = owner.of(AnswerQuestion)
    assert (asked.question, asked.answer, asked.revision) == ("q_1", answer, 3)


async def test_who_answers_a_question_second_is_told() -> None:
    """B53"""
    owner = Owner()

    async def closed(request: AnswerQuestion) -> Any:
        raise RequestClosed

    owner.on[AnswerQuestion] = closed
    async with inside(owner) as http:
        form = {"token": await token(http), "question": "q_1", "revision": "3", "text": "late"}
        answer = await http.post("/dashboard/answer", data=form)
        assert "elsewhere before your answer came" in (await http.get(answer.headers["location"])).text


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("answer", {"choice": "-1"}),
        ("answer", {"choice": "x"}),
        ("answer", {"choice": "²"}),
        ("answer", {"text": "x" * 4_001}),
        ("approve", {"answer": "always"}),
        ("approve", {}),
    ],
)
async def test_a_form_that_no_page_of_ours_sends_is_refused(action: str, given: dict[str, str]) -> None:
    owner = Owner()
    async with inside(owner) as http:
        answer = await http.post(f"/dashboard/{action}", data={"token": await token(http), **given})
        assert answer.status_code in (303, 400)
        assert "told=bad_arguments" in answer.headers.get("location", "told=bad_arguments")
    assert owner.of(AnswerApproval) == []
    assert owner.of(AnswerQuestion) == []


@pytest.mark.parametrize(
    "back", ["https://evil.example", "//evil.example", "/dashboard@evil", "/dashboard\nx: y", ""]
)
async def test_a_form_sends_its_reader_to_our_pages_only(back: str) -> None:
    async with inside(Owner()) as http:
        form = {"token": await token(http), "operation": "op_1", "back": back}
        answer = await http.post("/dashboard/cancel", data=form)
        assert answer.headers["location"] == "/dashboard?told=cancelled-here"


async def test_a_device_is_revoked_and_this_machine_is_not() -> None:
    owner = Owner()
    async with inside(owner) as http:
        page = (await http.get("/dashboard/devices")).text
        assert re.findall(r'name="device" value="([^"]+)"', page) == ["d_1"]
        form = {"token": await token(http), "device": "d_1", "back": "/dashboard/devices"}
        answer = await http.post("/dashboard/revoke", data=form)
        assert "is revoked" in (await http.get(answer.headers["location"])).text
    assert [each.device for each in owner.of(RevokeDevice)] == ["d_1"]


async def test_the_audit_log_is_read_by_pages_and_words() -> None:
    owner = Owner()
    async with inside(owner) as http:
        assert EVIL not in (await http.get("/dashboard/audit", params={"find": "ALERT(1) <script>"})).text
        assert "No line among" in (await http.get("/dashboard/audit", params={"find": "absent"})).text
        await http.get("/dashboard/audit", params={"before": "17"})
        assert owner.of(ReadAudit)[-1].before == 17
        assert (await http.get("/dashboard/audit", params={"before": "x" * 99})).status_code == 200


async def test_static_files_are_named_by_their_bytes_and_kept() -> None:
    async with browser(Owner()) as http:
        page = (await http.get("/dashboard/login")).text
        (style,) = re.findall(r'href="(/dashboard/static/[^"]+)"', page)
        answer = await http.get(style)
        assert answer.headers["content-type"].startswith("text/css")
        assert "immutable" in answer.headers["cache-control"]
