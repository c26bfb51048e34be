// What a person does with a question, in both kinds of host.  Each must pass by itself.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Chat, Seat, job, play, restart } from "./driver.mjs";

const FORMAT = {
  header: "Export format",
  question: "Which export format should the command use?",
  options: [
    { title: "JSON", description: "Structured data for programs.", recommended: true },
    { title: "CSV", description: "Tabular data for spreadsheets." },
    { title: "Both" },
  ],
};
const AXE = readFileSync(`${job.place}/node_modules/axe-core/axe.min.js`, "utf8");
const scenarios = [];
const inBoth = (name, scenario) => {
  for (const kind of ["apps", "openai"]) scenarios.push([`${name}-${kind}`, () => scenario(kind)]);
};

async function asked(kind, given = FORMAT, options = {}) {
  const chat = new Chat();
  await chat.ask(given);
  const seat = await Seat.take(kind, chat, options);
  return { chat, seat };
}

const until = async (holds, what) => {
  for (let left = 200; left > 0; left -= 1) {
    if (await holds()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(`still not so: ${what}`);
};

inBoth("confirms", async (kind) => {
  const { chat, seat } = await asked(kind);
  const confirmed = await chat.confirm();
  assert.equal(confirmed.isError, false);
  assert.equal(confirmed.structuredContent.question.status, "shown");
  await seat.shown();
  assert.equal(await seat.id("question").textContent(), FORMAT.question);
  assert.equal(await seat.frame.getByText("Recommended").count(), 1);
  await until(async () => {
    const heights = await seat.page.evaluate(() => window.heights || []);
    const box = await seat.id("card").boundingBox();
    return heights.length && Math.abs(heights.at(-1) - box.height) <= 1;
  }, "the host knows the height");
  await seat.leave();
});

inBoth("answer_revise_skip", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  await seat.option("JSON").check();
  await seat.button("Send answer").click();
  await seat.settled();
  assert.match(await seat.id("status").textContent(), /Answer saved/);
  const first = await chat.answer();
  assert.deepEqual(first.choices.map((each) => each.title), ["JSON"]);
  assert.equal(first.skipped, false);

  await seat.button("Change answer").click();
  assert.ok(await seat.option("JSON").isChecked());
  await seat.option("CSV").check();
  await seat.id("text").fill("with a header row");
  await seat.button("Save change").click();
  await seat.settled();
  const second = await chat.answer();
  assert.deepEqual(second.choices.map((each) => each.title), ["CSV"]);
  assert.equal(second.text, "with a header row");
  assert.equal(second.revision, 2);

  await seat.button("Change answer").click();
  await seat.button("Skip").click();
  await seat.settled();
  assert.equal((await chat.answer()).skipped, true);
  assert.ok(await seat.button("Answer after all").isVisible());
  assert.deepEqual(await chat.answers(), []);
  await seat.leave();
});

inBoth("skip", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  await seat.button("Skip").click();
  await seat.settled();
  const answer = await chat.answer();
  assert.equal(answer.skipped, true);
  assert.equal(answer.reason, undefined);
  await seat.leave();
});

inBoth("reload_keeps_the_draft", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  await seat.option("CSV").check();
  await seat.id("text").fill("semicolons, please");
  await seat.reload();
  await seat.shown();
  assert.ok(await seat.option("CSV").isChecked());
  assert.equal(await seat.id("text").inputValue(), "semicolons, please");
  await seat.button("Collapse").click();
  await seat.reload();
  await seat.button("Expand").click();
  await seat.button("Send answer").click();
  await seat.settled();
  assert.equal((await chat.answer()).text, "semicolons, please");
  await seat.button("Change answer").click();
  await seat.id("text").fill("tabs");
  await seat.reload();
  await seat.button("Save change").waitFor();
  assert.equal(await seat.id("text").inputValue(), "tabs");
  await seat.button("Cancel").click();
  await seat.settled();
  assert.equal(await seat.id("said").textContent(), "semicolons, please");
  await seat.leave();
});

inBoth("missed_result", async (kind) => {
  const { chat, seat } = await asked(kind, FORMAT, { withhold: true, alsoOpenai: kind === "apps" });
  await seat.id("status").filter({ hasText: "Loading" }).waitFor();
  await seat.page.waitForFunction(() => window.setGlobals !== undefined);
  await seat.page.evaluate((toolOutput) => window.setGlobals({ toolOutput }), chat.result.structuredContent);
  await seat.shown();
  assert.equal((await chat.confirm()).isError, false);
  await seat.option("Both").check();
  await seat.button("Send answer").click();
  await seat.settled();
  assert.deepEqual((await chat.answer()).choices.map((each) => each.title), ["Both"]);
  await seat.leave();
});

scenarios.push(["late_result-apps", async () => {
  const { chat, seat } = await asked("apps", FORMAT, { withhold: true });
  await seat.page.waitForFunction(() => window.initialized === 1);
  assert.ok(await seat.id("body").isHidden());
  await seat.page.evaluate(() => window.handOver());
  await seat.shown();
  assert.equal((await chat.confirm()).isError, false);
  await seat.leave();
}]);

scenarios.push(["text_only-apps", async () => {
  const chat = new Chat();
  await chat.ask(FORMAT);
  const { structuredContent, ...rest } = chat.result;
  chat.result = rest;
  const seat = await Seat.take("apps", chat);
  await seat.shown();
  assert.equal(await seat.id("question").textContent(), FORMAT.question);
  chat.result = { ...rest, structuredContent };
  assert.equal((await chat.confirm()).isError, false);
  await seat.leave();
}]);

scenarios.push(["host_listens_late-apps", async () => {
  const { chat, seat } = await asked("apps", FORMAT, { listenAfter: 1200 });
  await seat.shown();
  assert.equal((await chat.confirm()).isError, false);
  assert.equal(await seat.page.evaluate(() => window.initialized), 1);
  await seat.leave();
}]);

scenarios.push(["initialize_is_never_answered-openai", async () => {
  const { chat, seat } = await asked("openai");
  await seat.shown();
  assert.equal((await chat.confirm()).isError, false);
  await seat.option("CSV").check();
  await seat.button("Send answer").click();
  await seat.settled();
  await new Promise((resolve) => setTimeout(resolve, 5500)); // past the last attempt
  assert.equal((await chat.answer()).choices[0].title, "CSV");
  await seat.leave();
}]);

inBoth("answer_fails_twice", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  seat.failing = 2;
  await seat.option("JSON").check();
  await seat.id("text").fill("kept");
  for (let attempt = 0; attempt < 2; attempt += 1) {
    await seat.button("Send answer").click();
    await seat.id("error").filter({ hasText: "not saved" }).waitFor();
    assert.ok(await seat.button("Send answer").isEnabled());
    assert.equal(await seat.id("text").inputValue(), "kept");
    assert.ok(await seat.option("JSON").isChecked());
  }
  assert.deepEqual(await chat.answers(), []);
  await seat.button("Send answer").click();
  await seat.settled();
  assert.equal((await chat.answer()).text, "kept");
  await seat.leave();
});

inBoth("hostile_and_long", async (kind) => {
  const script = "<script>alert(1)</script><img src=x onerror=alert(2)>";
  const options = Array.from({ length: 12 }, (_, at) => ({
    title: `${script} ${at}`, description: at % 2 ? `${script} described ${"word ".repeat(40)}` : undefined,
  }));
  const long = `${script} ${"long question ".repeat(200)}`.slice(0, 2000);
  const given = { header: script, question: long, context: `${script} ${"x".repeat(900)}`, options };
  const { chat, seat } = await asked(kind, { ...given, allowMultiple: true }, { width: 320 });
  await seat.shown();
  assert.equal(await seat.id("question").textContent(), long.trim());
  assert.equal(await seat.id("header").textContent(), script);
  assert.equal(await seat.frame.locator(".option").count(), 12);
  assert.equal(await seat.frame.locator("main script, main img").count(), 0);
  const wide = await seat.frame.locator("html").evaluate((root) => root.scrollWidth - root.clientWidth);
  assert.equal(wide, 0, "nothing is wider than 320 px");
  await seat.frame.locator(".option input").nth(11).check();
  await seat.id("text").fill(script);
  await seat.button("Send answer").click();
  await seat.settled();
  assert.equal(await seat.id("said").textContent(), script);
  const answer = await chat.answer();
  assert.deepEqual(answer.choices.map((each) => each.index), [11]);
  assert.equal(answer.text, script);
  assert.equal(await seat.frame.locator("main script, main img").count(), 0);
  await seat.leave();
});

inBoth("restart_between", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  assert.equal((await chat.confirm()).isError, false);
  await seat.option("CSV").check();
  await restart();
  await seat.button("Send answer").click();
  await seat.settled();
  assert.equal((await chat.answer()).choices[0].title, "CSV");
  await seat.leave();
});

inBoth("keyboard_alone", async (kind) => {
  const { chat, seat } = await asked(kind, { ...FORMAT, allowMultiple: true });
  await seat.shown();
  await seat.button("Collapse").focus();
  await seat.page.keyboard.press("3");
  await seat.page.keyboard.press("1");
  assert.ok(await seat.option("JSON").isChecked());
  await seat.page.keyboard.press("1");
  assert.ok(!(await seat.option("JSON").isChecked()));
  await seat.page.keyboard.press("2");
  while (!(await seat.id("text").evaluate((text) => text === document.activeElement))) {
    await seat.page.keyboard.press("Tab");
  }
  await seat.page.keyboard.type("first 12");
  await seat.page.keyboard.press("Shift+Enter");
  await seat.page.keyboard.type("second");
  await seat.page.keyboard.press("Enter");
  await seat.settled();
  const answer = await chat.answer();
  assert.deepEqual(answer.choices.map((each) => each.title), ["CSV", "Both"]);
  assert.equal(answer.text, "first 12\nsecond");
  assert.ok(await seat.button("Change answer").evaluate((button) => button === document.activeElement));
  await seat.page.keyboard.press("Enter");
  assert.ok(await seat.option("CSV").evaluate((input) => input === document.activeElement));
  await seat.leave();
});

inBoth("text_question_and_empty_answer", async (kind) => {
  const { chat, seat } = await asked(kind, { question: "What should the branch be called?" });
  await seat.shown();
  assert.ok(await seat.id("choices").isHidden());
  await seat.button("Send answer").click();
  await seat.id("error").filter({ hasText: "write an answer" }).waitFor();
  assert.equal(seat.calls.filter((each) => each.answer).length, 0);
  await seat.id("text").fill("  fix/parser  ");
  await seat.button("Send answer").click();
  await seat.settled();
  assert.equal((await chat.answer()).text, "fix/parser");
  await seat.leave();
});

inBoth("answered_elsewhere", async (kind) => {
  const { chat, seat } = await asked(kind);
  await seat.shown();
  const other = await Seat.take(kind, chat);
  await other.shown();
  await other.option("CSV").check();
  await other.button("Send answer").click();
  await other.settled();
  await seat.option("JSON").check();
  await seat.button("Send answer").click();
  await seat.settled();
  assert.match(await seat.id("status").textContent(), /elsewhere/);
  assert.equal(await seat.id("chosen").textContent(), "CSV");
  assert.deepEqual((await chat.answer()).choices.map((each) => each.title), ["CSV"]);
  await seat.leave();
});

inBoth("late_answer", async (kind) => {
  const chat = new Chat();
  await chat.ask(FORMAT);
  const refused = await chat.confirm(); // ten seconds: nobody shows it
  assert.equal(refused.isError, true);
  assert.match(refused.content[0].text, /question_skipped/);
  assert.match((await chat.answer()).reason, /not shown/);
  const seat = await Seat.take(kind, chat);
  await seat.id("status").filter({ hasText: "went on without" }).waitFor();
  await seat.option("JSON").check();
  await seat.button("Send answer").click();
  await seat.settled();
  const answer = await chat.answer();
  assert.equal(answer.skipped, false);
  assert.equal(answer.choices[0].title, "JSON");
  await seat.leave();
});

inBoth("speaks_the_readers_language", async (kind) => {
  for (const [locale, direction, send] of [["ar-EG", "rtl", "إرسال الإجابة"], ["de-AT", "ltr", "Antwort senden"],
    ["zh-Hant-TW", "ltr", "发送回答"], ["sw-KE", "ltr", "Send answer"]]) {
    const { seat } = await asked(kind, FORMAT, { locale });
    await seat.shown();
    await seat.button(send).waitFor();
    assert.equal(await seat.frame.locator("html").getAttribute("dir"), direction);
    await seat.leave();
  }
});

inBoth("accessible", async (kind) => {
  for (const theme of ["light", "dark"]) {
    const { seat } = await asked(kind, { ...FORMAT, context: "The command has no default yet." }, { theme });
    await seat.shown();
    const frame = seat.page.frames().find((each) => each !== seat.page.mainFrame());
    const findings = async () => {
      await frame.evaluate(AXE);
      const { violations } = await frame.evaluate(() => window.axe.run());
      return violations.filter((each) => ["serious", "critical"].includes(each.impact))
        .map((each) => [each.id, each.nodes.map((node) => node.html)]);
    };
    assert.deepEqual(await findings(), []);
    await seat.option("JSON").check();
    assert.deepEqual(await findings(), []);
    await seat.button("Send answer").click();
    await seat.settled();
    assert.deepEqual(await findings(), []);
    await seat.leave();
  }
});

if (job.pictures) {
  scenarios.push(["pictures", async () => {
    const context = "The command has no default yet, and scripts will rely on what is chosen now.";
    const take = async (name, options, act) => {
      const { seat } = await asked("apps", { ...FORMAT, context }, options);
      await seat.shown();
      await act(seat);
      await seat.page.mouse.move(0, 0);
      await until(async () => Math.abs((await seat.page.locator("iframe").boundingBox()).height
        - (await seat.id("card").boundingBox()).height) <= 1, "the frame has its height");
      await seat.page.locator("iframe").screenshot({ path: `${job.pictures}/${name}.png` });
      await seat.leave();
    };
    const choose = (seat) => seat.option("JSON").check();
    await take("question-light", { theme: "light" }, choose);
    await take("question-dark", { theme: "dark" }, choose);
    await take("question-320", { width: 320 }, choose);
    await take("question-rtl", { locale: "ar" }, choose);
    await take("question-answered", {}, async (seat) => {
      await choose(seat);
      await seat.id("text").fill("One object per line.");
      await seat.button("Send answer").click();
      await seat.settled();
    });
  }]);
}

await play(scenarios);
