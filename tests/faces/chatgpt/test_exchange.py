"""Which conversation a request belongs to, and how long it may take."""

import pytest

from chappie_bridge.faces.chatgpt.exchange import MAX_VALUE, Exchange, tunnel_request
from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import ReceiptId
from chappie_bridge.wire.values import Caller
from tests.faces.chatgpt.scripted import Scripted


def exchange(**more: str) -> Exchange:
    return Exchange("owner", lambda: 0.0, **more)


def test_the_request_itself_names_the_conversation() -> None:
    caller = exchange(conversation="other", process="p").caller({"openai/session": "v1/a"})
    assert caller == Caller(principal="owner", source="openai", value="v1/a")


def test_the_header_serves_only_where_the_request_does_not_say() -> None:
    assert exchange(session="v1/h").caller(None).value == "v1/h"
    assert exchange(session="v1/h").caller({"openai/session": "v1/h"}).value == "v1/h"


def test_two_different_conversations_in_one_request_are_refused() -> None:
    with pytest.raises(BadArguments, match="X-OpenAI-Session"):
        exchange(session="v1/h").caller({"openai/session": "v1/m"})


@pytest.mark.parametrize("value", [7, ["v1"], {"a": 1}, True])
def test_a_conversation_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(BadArguments, match="openai/session"):
        exchange().caller({"openai/session": value})


@pytest.mark.parametrize("where", ["meta", "session", "conversation"])
def test_a_conversation_of_any_length_is_not_taken(where: str) -> None:
    long = "x" * (MAX_VALUE + 1)
    meta = {"openai/session": long} if where == "meta" else None
    with pytest.raises(BadArguments, match="longer"):
        exchange(**({} if meta else {where: long})).caller(meta)


def test_other_clients_are_their_header_their_process_or_nobody() -> None:
    assert exchange(conversation="c", process="p").caller({}).source == "header"
    assert exchange(process="p").caller(None) == Caller(principal="owner", source="stdio", value="p")
    assert exchange(client="curl\x1b[31m/8").caller(None) == Caller(
        principal="owner", source="none", label="curl\\x1b[31m/8"
    )


@pytest.mark.parametrize(("value", "taken"), [("wfr_1", "wfr_1"), ("", None), (7, None), ("x" * 2000, None)])
def test_the_tunnels_request_id_is_taken_when_it_can_be_one(value: object, taken: str | None) -> None:
    assert tunnel_request({"otunnel/requestId": value}) == taken
    assert tunnel_request(None) is None


def test_waiting_counts_from_the_arrival_and_leaves_time_to_write() -> None:
    now = 100.0
    under_way = Exchange("owner", lambda: now)
    assert under_way.left(40) == 40
    assert under_way.left(50) == 49
    now = 145.0
    assert under_way.left(40) == 0
    assert under_way.left(50) == 4
    assert under_way.in_time
    now = 150.5
    assert not under_way.in_time


def test_a_receipt_is_settled_once() -> None:
    board, under_way = Scripted(), exchange()
    under_way.carry(ReceiptId("r_1"))
    under_way.carry(None)
    under_way.settle(board, sent=False)
    under_way.settle(board, sent=True)
    assert board.receipts == {"r_1": [False]}
