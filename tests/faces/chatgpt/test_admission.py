"""Host, Origin and credential, on headers alone."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.faces.chatgpt.admission import Admission, Credential, Refusal

MINE = Admission(
    [Credential("owner", "one"), Credential("guest", "two")],
    public_url="https://bridge.example/path",
    allowed_hosts=["other.example:8443", "any.example"],
    allowed_origins=["https://page.example", "http://dev.example:3000"],
    how_to_find="It is in the drawer.",
)


def refused(headers: dict[str, str]) -> int | None:
    refusal = MINE.place({"host": "localhost", **headers})
    return refusal.status if refusal else None


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:24273", "localhost:1", "LOCALHOST", "localhost.", "[::1]", "[::1]:8"),
        *("bridge.example", "Bridge.Example:443", "other.example:8443", "any.example", "any.example:9"),
    ],
)
def test_names_of_our_own_are_served_on_any_port(host: str) -> None:
    """B13: behind a tunnel or a proxy the Host is a public name, with or without a port."""
    assert refused({"host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "evil.test",
            ".".join("0000"),
            ".".join("0000") + ":24273",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            " ",
        ),
        *("other.example", "other.example:8444", "localhost:x", "localhost@evil.test", "evil.test:localhost"),
        *("[::1", "localhost:123456", "127.0.0.1 evil"),
    ],
)
def test_any_other_host_is_misdirected(host: str) -> None:
    """B14 S02 S03: DNS rebinding reaches the loopback under the attacker's name."""
    refusal = MINE.place({"host": host})
    assert refusal is not None
    assert refusal.status == 421
    assert "allowed_hosts" in str(refusal.error.hint)


@given(st.text(string.ascii_lowercase + string.digits + ".-:[]@/ ", max_size=30))
def test_no_host_is_served_that_was_not_named(host: str) -> None:
    """B14: whatever the header holds."""
    names = {"127.0.0.1", "localhost", "bridge.example", "any.example", "[::1]", "other.example"}
    if MINE.place({"host": host}) is None:
        assert host.partition("]")[0] + "]" in names or host.partition(":")[0].rstrip(".") in names


@pytest.mark.parametrize(
    "origin",
    [
        *("http://localhost:5173", "https://127.0.0.1", "http://[::1]:3", "https://bridge.example"),
        *("https://page.example", "https://PAGE.example:444", "http://dev.example:3000"),
    ],
)
def test_pages_of_our_own_may_call(origin: str) -> None:
    assert refused({"origin": origin}) is None


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "https://evil.test", "http://page.example", "http://dev.example", "file://"),
        *("chrome-extension://localhost", "https://localhost.evil.test", "localhost", "https://"),
    ],
)
def test_foreign_pages_and_the_null_origin_may_not(origin: str) -> None:
    """S02 S09: a web page must not drive a server on the loopback."""
    refusal = MINE.place({"host": "localhost", "origin": origin})
    assert refusal is not None
    assert refusal.status == 403
    assert "allowed_origins" in str(refusal.error.hint)


@pytest.mark.parametrize(
    ("headers", "principal"),
    [
        ({"authorization": "Bearer one"}, "owner"),
        ({"authorization": "bearer  two "}, "guest"),
        ({"x-chappie-key": "two"}, "guest"),
        ({"x-chappie-key": "one", "authorization": "Bearer of-somebody-else"}, "owner"),
    ],
)
def test_a_credential_makes_its_principal(headers: dict[str, str], principal: str) -> None:
    assert MINE.principal(headers) == principal


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Basic one"},
        {"authorization": "one"},
        {"authorization": "Bearer"},
        {"authorization": "Bearer on"},
        {"x-chappie-key": ""},
        {"x-chappie-key": "one "},
        {"x-chappie-key": "öne", "authorization": "Bearer one"},
    ],
)
def test_without_one_the_answer_says_which_header_and_where_it_is(headers: dict[str, str]) -> None:
    refusal = MINE.principal(headers)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 401
    assert "Authorization: Bearer" in str(refusal.error)
    assert "X-Chappie-Key" in str(refusal.error)
    assert refusal.error.hint == "It is in the drawer."
    assert dict(refusal.headers)[b"www-authenticate"].startswith(b"Bearer ")


def test_an_open_server_takes_everybody_for_its_owner() -> None:
    assert Admission([]).principal({}) == "owner"


@pytest.mark.parametrize(
    "wrong", [{"allowed_hosts": ["a b"]}, {"allowed_origins": ["page.example"]}, {"allowed_hosts": [""]}]
)
def test_an_allow_list_that_cannot_be_read_is_an_error(wrong: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="is not"):
        Admission([], **wrong)


def test_an_empty_credential_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        Admission([Credential("owner", "")])


def test_a_refusal_shows_a_hostile_name_safely() -> None:
    refusal = MINE.place({"host": "\x1b[2J" + "e" * 500})
    assert refusal is not None
    assert "\x1b" not in str(refusal.error)
    assert len(str(refusal.error)) < 200
