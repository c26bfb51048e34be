// An MCP Apps host of other people's parts (ext-apps' AppBridge), bundled into the page that embeds the widget.
// `window.hostCall` is the driver's: it carries tool calls to the bridge under test.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

window.embed = async ({ input, result, withhold, context, listenAfter }) => {
  const frame = document.querySelector("iframe");
  const bridge = new AppBridge(null, { name: "host", version: "1" }, { serverTools: {} }, { hostContext: context });
  bridge.oncalltool = ({ name, arguments: given }) => window.hostCall(name, given);
  bridge.onsizechange = ({ height }) => {
    window.heights = [...(window.heights || []), height];
    frame.style.height = `${height}px`;
  };
  bridge.oninitialized = async () => {
    window.initialized = (window.initialized || 0) + 1;
    await bridge.sendToolInput({ arguments: input });
    if (!withhold) await bridge.sendToolResult(result);
  };
  const connect = () => bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  if (listenAfter) setTimeout(connect, listenAfter);
  else await connect();
  window.bridge = bridge;
  window.handOver = () => bridge.sendToolResult(result);
  frame.src = "/widget.html";
};
