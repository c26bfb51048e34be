"""What a test needs of the machine: a program, a package, a kernel feature.  The one place that skips
for want of one; other skips are stated in test_required.py.
"""

import os
from typing import TypeVar

import pytest

T = TypeVar("T")


def demanded() -> bool:
    """Must everything be there?  So it is where a change is judged: CHAPPIE_REQUIRE=all."""
    return os.environ.get("CHAPPIE_REQUIRE") == "all"


def required(found: T | None, what: str) -> T:
    """`found`, which the machine has; falsy, the test is skipped, or fails with CHAPPIE_REQUIRE=all."""
    __tracebackhide__ = True  # what is told is where it was asked for
    if found:
        return found
    if demanded():
        pytest.fail(f"required, but cannot be had: {what}", pytrace=False)
    pytest.skip(f"cannot be had: {what}")
