"""Where a failure of the registry becomes an error for the caller.  One boundary."""

from collections.abc import Generator
from contextlib import contextmanager

from chappie_bridge.wire.errors import Executed

from .store.port import StoreError


@contextmanager
def storing(executed: Executed, *, hint: str | None = None) -> Generator[None]:
    """:raises BridgeError: what StoreError becomes; `executed` is what the caller knows of its tools, `hint`
    what to do next."""
    try:
        yield
    except StoreError as error:
        raise error.bridge_error(executed, hint) from error
