"""What the owner alone asks of the broker, and its replies: codes.  Pure data."""

from typing import Literal

from pydantic import Field

from .messages import Request
from .requests import CallerRequest

Purpose = Literal["pair", "login", "consent"]


class OwnerRequest(CallerRequest):
    """Refused to everybody but processes of the owner on the broker's machine."""


class MakeCode(OwnerRequest):
    """A one-time code for one purpose."""

    type: Literal["make_code"] = "make_code"
    purpose: Purpose


class CodeMade(Request):
    """`expires` is ISO 8601 UTC."""

    type: Literal["code_made"] = "code_made"
    code: str
    expires: str


class RedeemCode(OwnerRequest):
    """Use a code up.  `by` is the network address that sent it: wrong codes are counted by it."""

    type: Literal["redeem_code"] = "redeem_code"
    purpose: Purpose
    code: str = Field(max_length=200)
    by: str = Field(max_length=100)
