"""A process that finishes one batch, is in the middle of another, has typed input waiting, and is killed."""

import sys
import time
from pathlib import Path

from tests.agents.stage import Clock, batch, call
from tests.agents.test_outbox import Desk

if __name__ == "__main__":
    desk = Desk(Path(sys.argv[1]), Clock())
    done, *_ = desk.run("all of it")
    begun = batch(call("say", text="0"), call("say", text="1"), call("say", text="2"))
    desk.begin(begun)
    desk.result(begun, 0, "zero")
    desk.result(begun, 2, "two")
    desk.type("in_typed", "hello")
    print(done.operation, begun.operation, "in_typed", flush=True)
    time.sleep(60)
