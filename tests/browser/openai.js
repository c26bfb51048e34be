// `window.openai` as ChatGPT puts it into the widget's frame, put there before the widget's own script runs.
// What it knows comes from the embedding page (`given`); state is kept there, as ChatGPT keeps it with the message.
"use strict";
(() => {
  const given = window.parent.given;
  window.openai = {
    toolOutput: given.toolOutput,
    toolInput: given.input,
    toolResponseMetadata: null,
    theme: given.theme,
    locale: given.locale,
    widgetState: window.parent.widgetState || null,
    setWidgetState: (state) => {
      window.openai.widgetState = state;
      window.parent.widgetState = JSON.parse(JSON.stringify(state));
    },
    callTool: (name, args) => window.parent.hostCall(name, args),
    notifyIntrinsicHeight: (height) => {
      window.parent.heights = [...(window.parent.heights || []), height];
      window.frameElement.style.height = `${height}px`;
    },
  };
  window.parent.setGlobals = (globals) => {
    Object.assign(window.openai, globals);
    window.dispatchEvent(new CustomEvent("openai:set_globals", { detail: { globals } }));
  };
})();
