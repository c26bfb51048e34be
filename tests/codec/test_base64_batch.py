import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from chappie_bridge.codec.base64_batch import MAX_CALLS, MAX_DEPTH, MAX_NAME, check_calls, decode, encode
from chappie_bridge.wire.errors import BadArguments, BadBase64
from chappie_bridge.wire.values import NewCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
CALLS = st.lists(
    st.builds(
        NewCall,
        name=st.text(min_size=1, max_size=MAX_NAME),
        arguments=st.dictionaries(st.text(), JSON, max_size=4),
    ),
    min_size=1,
    max_size=4,
)


def wrap(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def one(arguments: str) -> str:
    return '[{"name":"bash","arguments":' + arguments + "}]"


@given(CALLS)
def test_what_was_encoded_is_decoded(calls: list[NewCall]) -> None:
    """B69: the standard alphabet is sent; every byte survives."""
    text = encode(calls)
    assert text == wrap(base64.b64decode(text, validate=True))
    assert decode(text) == (tuple(calls), 0)


@given(CALLS, st.booleans(), st.booleans(), st.sampled_from(["", "\n", "\r\n ", "\t"]), st.integers(1, 76))
def test_either_alphabet_with_any_wrapping_is_the_same_batch(
    calls: list[NewCall], url_safe: bool, padded: bool, space: str, width: int
) -> None:
    """B70 B71: white space and missing padding are accepted, the URL-safe alphabet too."""
    text = encode(calls)
    if url_safe:
        text = text.replace("+", "-").replace("/", "_")
    if not padded:
        text = text.rstrip("=")
    wrapped = space.join(text[at : at + width] for at in range(0, len(text), width))
    assert decode(space + wrapped + space) == (tuple(calls), 0)


@pytest.mark.parametrize(
    ("text", "position", "of", "says"),
    [
        ("W10*", 3, "base64", "outside the Base64 alphabet"),
        ("W1\n0é", 4, "base64", "outside the Base64 alphabet"),
        ("W1\u00a00", 2, "base64", "outside the Base64 alphabet"),
        ("W=10", 1, "base64", "padding before its end"),
        ("++A_", 3, "base64", "mixes"),
        ("_A//", 2, "base64", "mixes"),
        ("W10gI", 4, "base64", "left over"),
        ("W10g I \n", 5, "base64", "left over"),
        ("W10==", 3, "base64", "wrong padding"),
        ("W10g====", 4, "base64", "wrong padding"),
        ("WQ=", 2, "base64", "wrong padding"),
        ("W11=", 2, "base64", "spare bits"),
        ("WR==", 1, "base64", "spare bits"),
        ("", 0, "json", "ends too early"),
        (" = ", 1, "base64", "wrong padding"),
        (wrap(b"\xef\xbb\xbf[]"), 0, "bytes", "byte order mark"),
        (wrap(b'["\xc3\xa4\xff"]'), 4, "bytes", "not UTF-8"),
        (wrap(b'["\xed\xa0\xbd"]'), 2, "bytes", "not UTF-8"),
        (wrap(b"\x89PNG\r\n\x1a\n"), 0, "bytes", "not UTF-8"),
        (wrap("nonsense"), 0, "json", "not JSON"),
        (wrap('[{"name":}]'), 9, "json", "not JSON"),
        (wrap("[] x"), 3, "json", "not JSON"),
        (wrap('["a\tb"]'), 3, "json", "not JSON"),
        (wrap('[{"name":"bash"'), 15, "json", "ends too early"),
        (wrap(one('{"a":1,"b":{"a":1},"a":2}')), 47, "json", "repeated key"),
        (wrap(one('{"a":1,"\\u0061":2}')), 35, "json", "repeated key"),
        (wrap(one('{"a":NaN}')), 33, "json", "out of range"),
        (wrap(one('{"a":[1.5,-Infinity]}')), 38, "json", "out of range"),
        (wrap(one('{"a":1e999}')), 33, "json", "out of range"),
        (wrap(one('{"a":' + "9" * 5000 + "}")), 33, "json", "out of range"),
        (wrap(' {"calls":[{"name":"bash","arguments":{}}]}'), 1, "json", "encode the array only"),
        (wrap('{"name":"bash","arguments":{}}'), 0, "json", "not an array"),
        (wrap('"[]"'), 0, "json", "not an array"),
        (wrap("[" * 100_000), 0, "json", "nested too deeply"),
    ],
)
def test_a_fault_is_refused_with_its_position(text: str, position: int, of: str, says: str) -> None:
    """B70 B71: lossless or an error, and a length of 1 modulo 4 is the caller's error, not ours."""
    with pytest.raises(BadBase64) as caught:
        decode(text)
    assert caught.value.data == {"position": position, "of": of}
    assert says in str(caught.value)
    assert f" {position}" in str(caught.value)


@given(st.text(max_size=40) | st.binary(max_size=40).map(wrap) | JSON.map(json.dumps).map(wrap))
def test_nothing_but_the_two_declared_errors_is_raised(text: str) -> None:
    with contextlib.suppress(BadBase64, BadArguments):
        decode(text)


def test_lone_surrogate_escapes_are_replaced_and_counted() -> None:
    """B63: alone → U+FFFD (noted); pair → real character."""
    decoded = decode(wrap(one(r'{"a":"\ud83d","b":"\ud83d\ude00","\ude00":1}')))
    assert decoded.calls[0].arguments == {"a": "\ufffd", "b": "😀", "\ufffd": 1}
    assert decoded.replaced == 2


GOOD: JsonValue = {"name": "read", "arguments": {"path": "a"}}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "`calls` must be an array"),
        ([], "it holds 0"),
        ([GOOD] * (MAX_CALLS + 1), "it holds 65"),
        ([GOOD, "read"], "`calls[1]` must be an object"),
        ([GOOD] * 49 + [{"name": "x"}], "`calls[49].arguments` is missing"),
        ([{"arguments": {}}], "`calls[0].name` is missing"),
        ([{"name": "", "arguments": {}}], "`calls[0].name` must be text"),
        ([{"name": 5, "arguments": {}}], "`calls[0].name` must be text"),
        ([{"name": "n" * (MAX_NAME + 1), "arguments": {}}], "`calls[0].name` must be text"),
        ([GOOD, {"name": "x", "arguments": "{}"}], "`calls[1].arguments` must be an object"),
        ([{"name": "x", "arguments": {}, "id\x1b": 1}], "`calls[0].id\\x1b` is unknown"),
        ([{"name": "x", "arguments": {"a": [float("nan")]}}], "`calls[0].arguments` holds a number"),
    ],
)
def test_a_call_of_another_shape_is_named_by_its_path(value: JsonValue, says: str) -> None:
    with pytest.raises(BadArguments) as caught:
        check_calls(value)
    assert says in str(caught.value)
    if isinstance(value, list) and "number" not in says:
        with pytest.raises(BadArguments) as again:
            decode(wrap(json.dumps(value)))
        assert str(again.value) == str(caught.value)


def test_arguments_are_nested_as_deep_as_the_bound_and_no_deeper() -> None:
    inside: JsonValue = 1
    for _ in range(MAX_DEPTH - 2):
        inside = [inside]
    assert check_calls([{"name": "x", "arguments": {"a": inside}}])[0].arguments == {"a": inside}
    with pytest.raises(BadArguments, match="nested more than 100 levels"):
        check_calls([{"name": "x", "arguments": {"a": [inside]}}])


def test_a_full_batch_is_accepted_in_order() -> None:
    calls = check_calls([{"name": f"t{index}", "arguments": {}} for index in range(MAX_CALLS)])
    assert [call.name for call in calls] == [f"t{index}" for index in range(MAX_CALLS)]
