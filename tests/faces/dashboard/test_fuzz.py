"""Whatever a browser sends, who is logged in gets a page."""

from typing import Any
from urllib.parse import urlencode

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chappie_bridge.faces.dashboard.pages import PAGES
from tests.faces.dashboard.owner import Owner, inside, token

_FIELDS = ("token", "back", "session", "approval", "answer", "question", "choice", "text", "skip", "revision")
_TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    ["1", "-1", "once", "٣", "\x00", "²"]
)
_PATHS = st.sampled_from([*PAGES.values(), "/dashboard/login", "/dashboard/image", "/dashboard/nothing"])
_DONE = st.sampled_from(["cancel", "approve", "answer", "revoke"])
_QUERIES = st.dictionaries(
    st.sampled_from(["id", "before", "after", "find", "told", "session", "sha256", "x"]), _TEXT, max_size=4
)
_FORMS = st.dictionaries(st.sampled_from([*_FIELDS, "operation", "device"]), _TEXT, max_size=6)
_QUIET = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_QUIET
@given(st.lists(st.tuples(_PATHS, _QUERIES), min_size=5, max_size=15))
def test_no_address_makes_a_page_fail(asked: list[tuple[str, dict[str, str]]]) -> None:
    async def look() -> None:
        async with inside(Owner()) as http:
            for path, query in asked:
                answer = await http.get(f"{path}?{urlencode(query)}")
                assert answer.status_code in (200, 303, 400, 404), (path, query)

    anyio.run(look)


@_QUIET
@given(st.lists(st.tuples(_DONE, _FORMS, st.booleans()), min_size=5, max_size=15))
def test_no_form_makes_a_page_fail(sent: list[tuple[str, dict[str, str], bool]]) -> None:
    async def send() -> None:
        async with inside(Owner()) as http:
            good = await token(http)
            for action, form, known in sent:
                fields: dict[str, Any] = {"x": ""} | form | ({"token": good} if known else {})
                answer = await http.post(f"/dashboard/{action}", data=fields)
                assert answer.status_code in ((303, 400) if known else (403,)), (action, form)

    anyio.run(send)


@_QUIET
@given(st.lists(st.binary(max_size=200), min_size=5, max_size=15))
def test_no_bytes_make_a_form_fail(bodies: list[bytes]) -> None:
    async def send() -> None:
        async with inside(Owner()) as http:
            kind = {"Content-Type": "application/x-www-form-urlencoded"}
            for body in bodies:
                answer = await http.post("/dashboard/answer", content=body, headers=kind)
                assert answer.status_code in (400, 403), body

    anyio.run(send)
