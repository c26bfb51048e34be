"""A process that opens a state directory and keeps it, for the tests of its lock.

`holder.py lock DIRECTORY`: waits for a line, tries to open, says `won` or `lost PID`, then waits for the end
of its input.  `holder.py child DIRECTORY`: opens, starts a program that outlives it, says that one's pid.
`holder.py secret DIRECTORY`: waits for a line, says the secret.
"""

import socket
import subprocess
import sys
from pathlib import Path

from chappie_broker.state import StateDirectory, StateLocked

SLEEPER = "import sys; print('here', flush=True); sys.stdin.read()"

if __name__ == "__main__":
    what, directory = sys.argv[1], Path(sys.argv[2])
    if what == "child":
        state = StateDirectory.open(directory)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(state.socket))
        child = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        print(child.pid, flush=True)
        sys.stdin.read()
    else:
        sys.stdin.readline()
        if what == "secret":
            print(StateDirectory.visit(directory).secret("install-secret"), flush=True)
        else:
            try:
                held = StateDirectory.open(directory)
                print("won", flush=True)
            except StateLocked as error:
                print("lost", error.pid, flush=True)
            sys.stdin.read()
