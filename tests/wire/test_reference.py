"""An address says exactly what it was made of, and nothing else is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappie_bridge.wire.errors import BadArguments
from chappie_bridge.wire.ids import SessionId
from chappie_bridge.wire.reference import Reference, parse

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(words, st.sampled_from(["file", "image"]), words, words, st.none() | words)
def test_an_address_comes_back_as_what_it_was_made_of(
    session: str, kind: str, name: str, shown: str, capability: str | None
) -> None:
    made = Reference(SessionId(session), kind, name, shown, capability)
    assert parse(str(made)) == made


@pytest.mark.parametrize(
    "address",
    [
        "",
        "https://session/s/file/u/n",
        "chappie://session",
        "chappie://session/s/file/u",
        "chappie://session/s/file/u/n/more",
        "chappie://session/s/spill/u/n",
        "chappie://other/s/file/u/n",
        "chappie://session//file/u/n",
        "chappie://session/s/file/u/n#f",
        "chappie://session/s/file/u/%ff",
        "chappie://session/s/file/u/n?%%%",
        "chappie://session/s/file/u/" + "n" * 5000,
        "chappie://[x/s/file/u/n",
    ],
)
def test_nothing_else_is_an_address(address: str) -> None:
    with pytest.raises(BadArguments):
        parse(address)
