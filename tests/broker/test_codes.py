"""One-time codes: one use, one purpose, ten minutes, few guesses."""

import pytest
from chappie_broker.codes import ALL_GUESSES, GUESSES, LIFETIME, MAX_CODES, WINDOW, OneTimeCodes

from chappie_bridge.wire.errors import Forbidden, Overloaded


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(codes: OneTimeCodes, code: str, by: str = "a") -> bool:
    try:
        codes.redeem("login", code, by=by)
    except Forbidden:
        return True
    return False


def test_a_code_works_once_however_it_is_typed() -> None:
    codes = OneTimeCodes(Clock())
    code = codes.make("login")
    codes.redeem("login", f" {code.lower().replace('-', ' ')} ", by="a")
    assert refused(codes, code)


def test_letters_that_look_like_digits_are_read_as_them() -> None:
    codes = OneTimeCodes(Clock())
    code = codes.make("login")
    codes.redeem("login", code.replace("0", "O").replace("1", "l"), by="a")


def test_a_code_is_for_one_purpose_and_ten_minutes() -> None:
    clock = Clock()
    codes = OneTimeCodes(clock)
    assert refused(codes, codes.make("pair"))
    late = codes.make("login")
    clock.now += LIFETIME
    assert refused(codes, late)


def test_who_guesses_wrong_has_to_wait_and_others_do_not() -> None:
    clock = Clock()
    codes = OneTimeCodes(clock)
    good = codes.make("login")
    assert all(refused(codes, "no") for _ in range(GUESSES))
    with pytest.raises(Overloaded):
        codes.redeem("login", good, by="a")
    codes.redeem("login", good, by="b")
    later = codes.make("login")
    clock.now += WINDOW
    codes.redeem("login", later, by="a")


def test_many_addresses_together_have_a_bound_too() -> None:
    codes = OneTimeCodes(Clock())
    assert all(refused(codes, "no", by=str(n)) for n in range(ALL_GUESSES))
    with pytest.raises(Overloaded):
        codes.redeem("login", "no", by="another")


def test_the_oldest_of_too_many_codes_goes_first() -> None:
    codes = OneTimeCodes(Clock())
    made = [codes.make("login") for _ in range(MAX_CODES + 1)]
    assert refused(codes, made[0])
    for code in made[1:]:
        codes.redeem("login", code, by="a")


def test_surrogates_and_long_text_are_just_wrong() -> None:
    codes = OneTimeCodes(Clock())
    assert refused(codes, "\udc80" * 1000)
