"""`python -m chappie_bridge.cli`: how the program starts parts of itself."""

from . import main

main()
