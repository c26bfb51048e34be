"""How long the tests with real processes go on."""

import os

LONG = os.environ.get("CHAPPIE_FAULTS") == "long"
"""As `make test-faults` has it; `make test` shows the same in less time."""
