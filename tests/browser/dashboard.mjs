// What the owner does in the dashboard.  Each must pass by itself.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Chat, Seat, browser, job, need, play } from "./driver.mjs";

const AXE = readFileSync(`${job.place}/node_modules/axe-core/axe.min.js`, "utf8");
const PAGES = [
  "", "/approvals", "/questions", "/sessions", "/session", "/operations", "/transfers", "/devices", "/audit", "/status",
];
const ENTRIES = 10_000;
const scenarios = [];
const scenario = (name, act) => scenarios.push([name, act]);

const until = async (holds, what) => {
  for (let left = 400; left > 0; left -= 1) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(`still not so: ${what}`);
};

/** A browser of the owner, at its login page or logged in. */
class Desk {
  static async at(options = {}) {
    const desk = new Desk();
    desk.context = await browser.newContext({ viewport: { width: 1000, height: 760 }, ...options });
    desk.page = await desk.context.newPage();
    desk.faults = [];
    desk.page.on("pageerror", (error) => desk.faults.push(String(error)));
    desk.page.on("console", (message) => {
      if (message.type() === "error") desk.faults.push(message.text());
    });
    return desk;
  }

  static async open(path = "", options = {}) {
    const desk = await Desk.at(options);
    const { link } = await need("link");
    await desk.page.goto(link);
    if (options.javaScriptEnabled === false) await desk.page.getByLabel("Code").fill(new URL(link).hash.slice(1));
    await desk.button("Log in").click();
    await desk.page.waitForURL("**/dashboard");
    if (path) await desk.goto(path);
    return desk;
  }

  async goto(path) {
    const query = path === "/session" ? `?id=${encodeURIComponent(job.session)}` : "";
    await this.page.goto(`${new URL("/dashboard", job.url)}${path}${query}`);
    return this;
  }

  async live() {
    await this.page.locator("#line", { hasText: "Live" }).waitFor();
    return this;
  }

  button(name, exact = true) { return this.page.getByRole("button", { name, exact }); }

  async leave() {
    assert.deepEqual(this.faults, []);
    await this.context.close();
  }
}

const call = (chat, calls) => chat.tool("call", { calls, sessionId: job.session });
const read = { name: "read", arguments: { path: "note.txt" } };
const write = (path) => ({ name: "write", arguments: { path, content: "text\n" } });
const head = (result) => JSON.parse(result.content[0].text);
const joined = (chat, result, more = {}) => chat.tool("call", { operation: head(result).operation, ...more });

scenario("login_once", async () => {
  const desk = await Desk.at();
  const { link } = await need("link");
  await desk.page.goto(link);
  assert.equal(new URL(desk.page.url()).hash, "", "the code is taken out of the address");
  await desk.button("Log in").click();
  await desk.page.waitForURL("**/dashboard");
  const [cookie] = await desk.context.cookies();
  assert.ok(cookie.httpOnly);
  assert.equal(cookie.sameSite, "Strict");
  const second = await Desk.at();
  await second.page.goto(link);
  await second.button("Log in").click();
  await second.page.getByRole("alert").waitFor();
  assert.deepEqual(await second.context.cookies(), []);
  await second.context.close(); // a refusal is an error to the console
  await desk.leave();
});

scenario("transcript_live", async () => {
  const desk = await (await Desk.open("/session")).live();
  const before = await desk.page.locator("#entries > li").count();
  await call(new Chat(), [{ name: "bash", arguments: { command: "echo seen-live" } }]);
  const result = desk.page.locator("#entries > li.result").last();
  await result.locator("summary", { hasText: "seen-live" }).waitFor();
  assert.ok(await desk.page.locator("#entries > li").count() >= before + 2);
  await result.locator("summary").press("Enter");
  assert.ok(await result.locator("pre").first().isVisible());
  await desk.leave();
});

for (const [name, button] of [["approve", "Allow once"], ["deny", "Deny"]]) {
  scenario(name, async () => {
    const desk = await (await Desk.open("/approvals")).live();
    const chat = new Chat();
    const asking = await call(chat, [write(`${name}.txt`)]);
    assert.equal(head(asking).status, "asking");
    const card = desk.page.locator("[data-part=approvals] > .card", { hasText: `${name}.txt` });
    await card.waitFor();
    await until(async () => (await desk.page.locator("#announce").textContent()) !== "", "it is announced");
    assert.match(await desk.page.title(), /^\(\d+\) /);
    await card.getByRole("button", { name: button, exact: true }).click();
    const result = await joined(chat, asking);
    assert.equal(head(result).status, "done");
    assert.equal(JSON.parse(result.content[1].text).isError, name === "deny");
    await card.waitFor({ state: "detached" });
    assert.match(await desk.page.locator("#told").textContent(), name === "deny" ? /Not allowed/ : /Allowed/);
    assert.equal(await desk.page.evaluate(() => document.activeElement.id), "told");
    await desk.leave();
  });
}

scenario("cancel", async () => {
  const desk = await (await Desk.open("/operations")).live();
  const waiting = call(new Chat(), [{ name: "bash", arguments: { command: "sleep 60" } }]);
  await desk.button("Cancel", false).first().click();
  assert.equal(head(await waiting).status, "cancelled");
  await desk.page.locator(".badge.cancelled").first().waitFor();
  await desk.leave();
});

scenario("question_answered_here", async () => {
  const chat = new Chat();
  await chat.ask({ question: "Here or there?", options: [{ title: "Here" }, { title: "There" }] });
  const seat = await Seat.take("apps", chat);
  await seat.shown();
  const desk = await (await Desk.open("/questions")).live();
  const card = desk.page.locator(".card", { hasText: "Here or there?" });
  await card.getByLabel("Here").first().check();
  await card.getByRole("button", { name: "Send answer", exact: true }).click();
  await card.locator(".badge.answered").waitFor();
  await seat.option("There").check();
  await seat.button("Send answer").click();
  await seat.settled();
  const answers = await chat.answers();
  assert.deepEqual(answers.map((each) => each.choices.map((choice) => choice.title)), [["Here"]]);
  await desk.leave();
  await seat.leave();
});

scenario("draft_survives", async () => {
  const chat = new Chat();
  await chat.ask({ question: "What is kept?" });
  const desk = await (await Desk.open()).live();
  const field = desk.page.locator(".card", { hasText: "What is kept?" }).getByLabel("Your answer");
  await field.fill("half an ans");
  const seen = desk.page.locator("[data-part=operations] > .card");
  const waiting = call(new Chat(), [{ name: "bash", arguments: { command: "sleep 2" } }]);
  await seen.first().waitFor();
  await waiting;
  await seen.first().waitFor({ state: "detached" });
  assert.equal(await field.inputValue(), "half an ans");
  assert.ok(await field.evaluate((node) => node === document.activeElement));
  await desk.leave();
});

scenario("logged_out_elsewhere", async () => {
  const desk = await (await Desk.open()).live();
  const other = await desk.context.newPage();
  await other.goto(new URL("/dashboard/status", job.url).href);
  await other.getByRole("button", { name: "Log out" }).click();
  await other.waitForURL("**/login");
  await call(new Chat(), [read]);
  await desk.page.bringToFront();
  await desk.page.waitForURL("**/login");
  await desk.context.close();
});

scenario("without_script", async () => {
  const desk = await Desk.open("", { javaScriptEnabled: false });
  const chat = new Chat();
  const asking = await call(chat, [write("plain.txt")]);
  await until(async () => {
    await desk.goto("/approvals");
    return (await desk.page.locator(".card", { hasText: "plain.txt" }).count()) > 0;
  }, "the approval is on the page");
  await desk.page.locator(".card", { hasText: "plain.txt" }).getByRole("button", { name: "Allow once" }).click();
  assert.match(await desk.page.locator("#told").textContent(), /Allowed/);
  assert.equal(head(await joined(chat, asking)).status, "done");
  for (const path of PAGES) await desk.goto(path);
  await desk.goto("/session");
  assert.ok(await desk.page.locator("#entries > li").count() > 0);
  await desk.leave();
});

scenario("flat", async () => {
  const desk = await (await Desk.open("/session")).live();
  const client = await desk.context.newCDPSession(desk.page);
  await client.send("Performance.enable");
  const measured = async () => {
    for (let turn = 0; turn < 3; turn += 1) await client.send("HeapProfiler.collectGarbage");
    const { metrics } = await client.send("Performance.getMetrics");
    const value = (name) => metrics.find((each) => each.name === name).value;
    return { heap: value("JSHeapUsedSize"), nodes: value("Nodes") };
  };
  const chat = new Chat();
  let made = 0;
  const filled = async (count) => {
    for (; made < count; made += 128) await call(chat, Array(64).fill(read));
    await call(chat, [{ name: "bash", arguments: { command: `echo after-${made}` } }]);
    await desk.page.locator("#entries > li.result").last().filter({ hasText: `after-${made}` }).waitFor({ timeout: 120_000 });
  };
  await filled(1_000);
  const early = await measured();
  await filled(ENTRIES);
  const late = await measured();
  assert.ok(await desk.page.locator("#entries > li").count() <= 200);
  const told = `${JSON.stringify(early)} after 1,000 entries, ${JSON.stringify(late)} after ${made}`;
  assert.ok(late.heap < early.heap * 1.5 + 1_000_000, told);
  assert.ok(late.nodes < early.nodes * 1.3 + 500, told);
  await desk.leave();
});

/** Something on every page. */
async function busy() {
  const chat = new Chat();
  await call(chat, [read, { name: "bash", arguments: { command: "ls -la; exit 3" } }, { name: "ls", arguments: {} }]);
  await chat.ask({
    header: "Export format", question: "Which export format should the command use?",
    options: [
      { title: "JSON", description: "Structured data for programs.", recommended: true },
      { title: "CSV", description: "Tabular data for spreadsheets." },
    ],
  });
  const asking = await call(chat, [write("report.md")]);
  return () => joined(chat, asking, { cancel: true });
}

scenario("accessible", async () => {
  const idle = await busy();
  const desk = await Desk.open();
  const faults = [];
  for (const path of PAGES) {
    await desk.goto(path);
    for (const colorScheme of ["light", "dark"]) {
      await desk.page.emulateMedia({ colorScheme });
      await desk.page.evaluate(AXE);
      for (const found of (await desk.page.evaluate(() => window.axe.run())).violations) {
        faults.push(`${path} ${colorScheme} ${found.impact} ${found.id}: ${found.nodes[0].target}`);
      }
    }
    await desk.page.setViewportSize({ width: 320, height: 640 });
    const width = await desk.page.evaluate(() => document.documentElement.scrollWidth);
    if (width > 320) faults.push(`${path} is ${width} px wide`);
    await desk.page.setViewportSize({ width: 1000, height: 760 });
  }
  assert.deepEqual(faults, []);
  await idle();
  await desk.leave();
});

if (job.pictures) {
  scenario("pictures", async () => {
    await busy();
    const desk = await (await Desk.open()).live();
    const take = (name) => desk.page.screenshot({ path: `${job.pictures}/dashboard-${name}.png`, fullPage: true });
    await take("light");
    await desk.page.setViewportSize({ width: 320, height: 640 });
    await take("320");
    await desk.page.setViewportSize({ width: 1000, height: 760 });
    await desk.page.emulateMedia({ colorScheme: "dark" });
    await (await desk.goto("/session")).live();
    await take("dark");
    await desk.leave();
  });
}

await play(scenarios);
