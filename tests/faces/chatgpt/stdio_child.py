"""A process that serves MCP over stdio with a scripted broker, as `chappie-bridge mcp` does."""

import subprocess
import sys

from chappie_bridge.faces.chatgpt.descriptors import claimed


def _noise() -> None:
    print("printed by a tool", flush=True)
    sys.stderr.write("e" * 256 * 1024)
    subprocess.run(["echo", "printed by a child"], check=True)
    subprocess.run(["cat"], check=True)  # ends at once: the requests are not its input


def main() -> None:
    with claimed() as (source, sink):
        print("printed at import")

        import anyio

        from chappie_bridge.faces.chatgpt.server import serve_stdio
        from chappie_bridge.wire.blocks import Text
        from chappie_bridge.wire.requests import OperationView, Submit
        from tests.faces.chatgpt.scripted import Scripted, result, settings, view

        async def call(asked: Submit) -> OperationView:
            assert asked.calls is not None
            name, arguments = asked.calls[0].name, asked.calls[0].arguments
            if name == "noise":
                _noise()
            elif name == "stuck":
                await anyio.sleep_forever()
            text = f"{asked.caller.source} {arguments.get('text', name)}"
            return view(results=(result((Text(text=text),)),))

        board = Scripted()
        board.on["call"] = call
        anyio.run(serve_stdio, board, settings(), source, sink)


if __name__ == "__main__":
    main()
