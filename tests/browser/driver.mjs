// Drives the question's page in Chromium: a conversation with the bridge, a host page, a person.
// Speaks JSON lines: says each outcome on stdout, and what only its parent can do (`restart`, `link`).
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createInterface } from "node:readline/promises";
import { build } from "esbuild";
import { chromium } from "playwright-core";

export const job = JSON.parse(process.argv[2]);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

/** What only the parent can do. */
export async function need(what) {
  say({ need: what });
  return JSON.parse((await lines.next()).value);
}

/** A new life of the bridge under test. */
export async function restart() {
  Object.assign(job, await need("restart"));
}

let number = 0;
async function rpc(method, params) {
  const answer = await fetch(job.url, {
    method: "POST",
    headers: { ...job.headers, "content-type": "application/json", accept: "application/json" },
    body: JSON.stringify({ jsonrpc: "2.0", id: ++number, method, params }),
  });
  const { result, error } = await answer.json();
  assert.ok(result, JSON.stringify(error));
  return result;
}

/** ChatGPT's side of one chat. */
export class Chat {
  meta = { "openai/session": `v1/browser-${Math.random()}` };

  tool(name, given) {
    return rpc("tools/call", { name, arguments: given, _meta: this.meta });
  }

  async ask(given) {
    this.input = given;
    this.result = await this.tool("ask", { ...given, sessionId: job.session });
    assert.equal(this.result.isError, false, JSON.stringify(this.result.content));
    return this.result.structuredContent.question.id;
  }

  confirm() {
    return this.tool("ask_assert", { questionId: this.result.structuredContent.question.id });
  }

  /** The answers that come with the next result. */
  async answers() {
    const calls = [{ name: "read", arguments: { path: "note.txt" } }];
    const { content } = await this.tool("call", { calls, sessionId: job.session });
    const texts = content.filter((each) => each.type === "text").map((each) => each.text);
    return texts.filter((text) => text.startsWith('{"webAnswer"')).map((text) => JSON.parse(text).webAnswer);
  }

  async answer() {
    const [answer, ...others] = await this.answers();
    assert.ok(answer, "no answer came");
    assert.deepEqual(others, []);
    return answer;
  }
}

async function served() {
  const { tools } = await rpc("tools/list", {});
  const { ui } = tools.find((each) => each.name === "ask")._meta;
  const { contents } = await rpc("resources/read", { uri: ui.resourceUri });
  assert.equal(contents[0].mimeType, "text/html;profile=mcp-app");
  const widget = contents[0].text;
  const bundle = await build({
    entryPoints: [`${job.place}/host.mjs`], bundle: true, write: false, format: "iife", logLevel: "error",
  });
  const shell = (script) => `<!doctype html><title>host</title><style>body{margin:0}iframe{border:0;width:100%;
    height:60px;display:block}</style><iframe title="question"></iframe><script>${script}</script>`;
  const openai = readFileSync(`${job.place}/openai.js`, "utf8");
  const pages = {
    "/apps": shell(bundle.outputFiles[0].text.replaceAll("</script", "<\\/script")),
    "/openai": shell(""),
    "/widget.html": widget,
    "/with-openai.html": widget.replace("<head>", `<head><script>${openai}</script>`),
  };
  const server = createServer((request, answer) => {
    answer.writeHead(pages[request.url] ? 200 : 404, { "content-type": "text/html; charset=utf-8" });
    answer.end(pages[request.url] || "");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, at: `http://127.0.0.1:${server.address().port}` };
}

const { server, at } = await served();
export const browser = await chromium.launch({
  executablePath: job.chromium, args: ["--no-sandbox", "--disable-dev-shm-usage"],
});

/** The page of `chat`'s question in a host of `kind` ("apps" or "openai"). */
export class Seat {
  static async take(kind, chat, options = {}) {
    const seat = new Seat();
    seat.kind = kind;
    seat.chat = chat;
    seat.options = { theme: "light", locale: "en-US", width: 480, ...options };
    const { theme, locale, width } = seat.options;
    seat.context = await browser.newContext({
      viewport: { width, height: 700 }, locale, colorScheme: theme, deviceScaleFactor: 2,
    });
    seat.page = await seat.context.newPage();
    seat.page.setDefaultTimeout(10_000);
    seat.faults = [];
    seat.page.on("pageerror", (error) => seat.faults.push(String(error)));
    seat.page.on("dialog", (dialog) => { seat.faults.push("a dialog"); dialog.dismiss(); });
    seat.page.on("request", (request) => {
      if (!request.url().startsWith(at)) seat.faults.push(`a request to ${request.url()}`);
    });
    seat.failing = 0;
    seat.calls = [];
    await seat.page.exposeFunction("hostCall", async (name, given) => {
      assert.equal(name, "answer");
      seat.calls.push(given);
      if (given.answer && seat.failing > 0) {
        seat.failing -= 1;
        if (seat.failing % 2) throw new Error("the host lost it");
        return { isError: true, content: [{ type: "text", text: '{"error":{"code":"internal","message":"x"}}' }] };
      }
      return chat.tool(name, given);
    });
    await seat.page.goto(`${at}/${kind}`);
    await seat.embed();
    return seat;
  }

  async embed() {
    const { kind, chat, options } = this;
    const { theme, locale, withhold = false, listenAfter = 0, alsoOpenai = false } = options;
    const { input, result } = chat;
    const toolOutput = withhold ? null : result.structuredContent;
    await this.page.evaluate((given) => { window.given = given; }, { toolOutput, input, theme, locale });
    if (kind === "apps") {
      const context = { theme, locale };
      await this.page.evaluate((given) => window.embed(given), { input, result, withhold, context, listenAfter });
      if (alsoOpenai) await this.goTo("/with-openai.html");
    } else {
      await this.goTo("/with-openai.html");
    }
  }

  goTo(path) {
    return this.page.evaluate((to) => { document.querySelector("iframe").src = to; }, path);
  }

  /** As when the chat is opened again: the same message, a new page. */
  async reload() {
    if (this.kind === "apps") {
      await this.page.evaluate(() => window.bridge.teardownResource({}));
      await this.page.reload();
      await this.embed();
    } else {
      await this.goTo("/openai-none");
      await this.goTo("/with-openai.html");
    }
  }

  get frame() { return this.page.frameLocator("iframe"); }
  id(name) { return this.frame.locator(`#${name}`); }
  option(title) { return this.frame.getByLabel(title, { exact: false }).first(); }
  button(name) { return this.frame.getByRole("button", { name, exact: true }); }

  async shown() {
    await this.id("body").waitFor();
    return this;
  }

  async settled() {
    await this.id("summary").waitFor();
    await this.frame.locator('#card[aria-busy="false"]').waitFor();
  }

  async leave() {
    assert.deepEqual(this.faults, []);
    await this.context.close();
  }
}

/** Runs `scenarios` by name and says how each went. */
export async function play(scenarios) {
  for (const [name, scenario] of scenarios) {
    if (job.only.length && !job.only.some((each) => name.startsWith(each))) continue;
    try {
      await scenario();
      say({ name, failure: null });
    } catch (error) {
      say({ name, failure: String(error.stack || error).slice(0, 3000) });
    }
    for (const context of browser.contexts()) await context.close();
  }
  await browser.close();
  server.close();
  process.exit(0);
}
