"""What every test may use."""

# hypothesis' plugin would import the package only for its closing summary, when collecting what the tests
# left logs a traceback in the midst of a parse: CPython 3.11 loses count there (python/cpython#106905).
import hypothesis  # noqa: F401 - see above
import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
