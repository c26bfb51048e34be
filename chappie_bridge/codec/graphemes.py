"""Where a text may be cut: between the characters a person sees.  Pure, and an approximation.

Of UAX #29: CR LF, combining and spacing marks, joiners, emoji modifiers, flags, tags, Hangul syllables and
Indic conjuncts stay whole.  Left out: the few prepended signs.  A pile of more than `LONGEST` code points
may be cut, so that no text makes the search long.
"""

import unicodedata

LONGEST = 64
"""Code points of one visible character that are kept together."""

_LONGEST_FLAGS = 2_048
_JOINER = "\u200d"
_EXTEND = frozenset("\u200c\u200d\uff9e\uff9f")
_VIRAMA = 9  # the combining class of the sign that ties two consonants into one conjunct


def boundary_before(text: str, at: int) -> int:
    """The last place at or before `at` where `text` may be cut."""
    for place in range(at, max(at - LONGEST, 0), -1):
        if may_cut(text, place):
            return place
    return 0 if at <= LONGEST else at


def boundary_after(text: str, at: int) -> int:
    """The first place at or after `at` where `text` may be cut."""
    for place in range(at, min(at + LONGEST, len(text))):
        if may_cut(text, place):
            return place
    return len(text) if len(text) - at <= LONGEST else at


def line_before(text: str, at: int, within: int) -> int:
    """As `boundary_before`, but at the start of a line if one starts in the `within` characters before."""
    newline = text.rfind("\n", max(at - within, 0), at)
    return boundary_before(text, at) if newline < 0 else newline + 1


def line_after(text: str, at: int, within: int) -> int:
    """As `boundary_after`, but at the start of a line that is not the empty end of the text, if one starts
    in the `within` characters after."""
    newline = text.find("\n", max(at - 1, 0), at + within)
    if newline < 0 or not text[newline + 1 : newline + 1 + within].strip():
        return boundary_after(text, at)
    return newline + 1


def may_cut(text: str, at: int) -> bool:
    """May `text` be cut between the code points `at - 1` and `at`?"""
    if not 0 < at < len(text):
        return True
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":
        return (before, after) != ("\r", "\n")
    if after in _EXTEND or before == _JOINER or _extends(after):
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        return _flag_halves_before(text, at) % 2 == 0
    if unicodedata.combining(before) == _VIRAMA and after.isalpha():
        return False
    return not _joins_syllable(before, after)


def _extends(char: str) -> bool:
    return (
        unicodedata.category(char) in ("Mn", "Mc", "Me")
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
    )


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flag_halves_before(text: str, at: int) -> int:
    start = at
    while start and at - start < _LONGEST_FLAGS and _is_flag_half(text[start - 1]):
        start -= 1
    return at - start


def _joins_syllable(before: str, after: str) -> bool:
    """Do two parts of a Hangul syllable meet here?"""
    if "\u1100" <= before <= "\u115f" or "\ua960" <= before <= "\ua97c":
        return "\u1100" <= after <= "\u11a7" or "\ua960" <= after <= "\ua97c" or "\uac00" <= after <= "\ud7a3"
    if "\uac00" <= before <= "\ud7a3" or "\u1160" <= before <= "\u11ff" or "\ud7b0" <= before <= "\ud7fb":
        return "\u1160" <= after <= "\u11ff" or "\ud7b0" <= after <= "\ud7fb"
    return False
