// The form, the run in progress, and what is shown of it.

import { ApiError, complete, servedModel } from "./api.js";
import { drawBars } from "./charts.js";
import { Run } from "./run.js";
import { TextView } from "./text.js";
import { drawTree, summary } from "./tree.js";

const HINTS = {
  off: "One token a step, no drafter: the target on its own.",
  chain: "One path: the drafter’s best guess at every depth.",
  tree: "Many paths at once, the likeliest nodes first.",
  auto: "A tree of as many nodes as pay for themselves; none is a plain step.",
};
// Trees and charts change this often while a run goes on: fast enough to feel live, slow enough to be seen.
const REDRAW_MS = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 200;
const REPLAY_MS = 700;

const byId = (id) => document.getElementById(id);
const form = byId("form");
const slider = byId("round");
const text = new TextView(byId("text"), selectRound);

let run = null;
let selected = null; // index of the round that is shown; null follows the newest
let abort = null; // of the run in progress
let replaying = null; // timer
let redrawAt = 0;

async function start() {
  stopReplay();
  showError(null);
  const request = readForm();
  const controller = (abort = new AbortController());
  const own = (run = new Run(request.prompt));
  [selected, redrawAt] = [null, 0];
  text.reset(request.prompt);
  setRunning(true);
  drawAll();
  bringIntoView(byId("text-title"));
  try {
    for await (const chunk of complete(request, apiKey(), controller.signal)) {
      own.add(chunk, performance.now());
      scheduleDraw();
    }
    showStatus(ending(own));
  } catch (error) {
    if (error.name === "AbortError") showStatus(`Stopped after ${count(own.released, "token")}.`);
    else if (error instanceof ApiError) fail(error);
    else throw error;
  } finally {
    abort = null;
    setRunning(false);
    drawAll();
  }
}

/** On a narrow screen the text is below the form. */
function bringIntoView(title) {
  if (title.getBoundingClientRect().bottom > 0.7 * innerHeight) title.closest("section").scrollIntoView({ block: "start" });
}

function fail(error) {
  showStatus(run.released ? `Failed after ${count(run.released, "token")}.` : "Failed.");
  showError(error);
}

function ending(own) {
  const why = { stop: "the text ended", length: "the token limit was reached" }[own.finishReason];
  return `Finished: ${count(own.released, "token")} in ${count(own.decodingRounds, "round")}; ${why}.`;
}

function readForm() {
  const fields = new FormData(form);
  const number = (name) => (fields.get(name) === "" ? undefined : Number(fields.get(name)));
  return {
    prompt: fields.get("prompt"),
    speculation: fields.get("speculation"),
    temperature: number("temperature"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    node_limit: number("node_limit"),
  };
}

// Text comes with every frame, the rest more slowly.
let frame = null;
function scheduleDraw() {
  frame ??= requestAnimationFrame((now) => {
    frame = null;
    if (abort === null) return; // the end has drawn everything
    text.update(run);
    if (now < redrawAt) return;
    redrawAt = now + REDRAW_MS;
    drawFigures();
  });
}

function drawAll() {
  text.update(run);
  drawFigures();
}

function drawFigures() {
  drawCounters();
  const last = run.rounds.length - 1;
  slider.max = Math.max(last, 0);
  slider.disabled = byId("previous").disabled = byId("next").disabled = last < 1;
  byId("replay").disabled = last < 1 || abort !== null;
  drawRound();
}

function drawCounters() {
  const show = (id, value, digits = 0) => {
    byId(`stat-${id}`).textContent = value === null ? "–" : value.toFixed(digits);
  };
  show("tokens", run.released);
  show("speed", run.tokensPerSecond);
  show("rounds", run.decodingRounds);
  show("length", run.tokensPerRound, 2);
  show("accepted", run.accepted);
  show("proposed", run.proposed);
  show("draft", run.meanMs(run.draftMs), 1);
  show("verify", run.meanMs(run.verifyMs), 1);
  byId("usage").hidden = run.usage === null;
  byId("usage-body").textContent = JSON.stringify(run.usage, null, 2);
}

/** Everything that depends on the round shown. */
function drawRound() {
  const index = selected ?? run.rounds.length - 1;
  text.select(selected);
  drawCharts(Math.max(index, 0));
  if (index < 0) {
    byId("round-label").textContent = "round –";
    byId("tree").replaceChildren();
    byId("tree-caption").textContent = "Waiting for the first round…";
    return;
  }
  const round = run.rounds[index];
  slider.value = index;
  slider.setAttribute("aria-valuetext", `round ${index} of ${run.rounds.length - 1}`);
  byId("round-label").textContent = `round ${index} of ${run.rounds.length - 1}`;
  byId("tree-caption").textContent = summary(round);
  const rootText = round.firstToken ? run.tokens[round.firstToken - 1].text : "prompt";
  byId("tree").replaceChildren(drawTree(round, rootText));
}

function drawCharts(index) {
  const { rounds } = run;
  const shared = { selected: index, onSelect: selectRound };
  const mean = run.tokensPerRound;
  const draft = run.meanMs(run.draftMs);
  drawBars(byId("length-chart"), {
    ...shared,
    series: [
      { name: "bonus", values: rounds.map(() => 1) },
      { name: "accepted", values: rounds.map((round) => round.texts.length - 1) },
    ],
    mean,
    label: mean === null ? "No rounds yet." : `Tokens of each round, ${mean.toFixed(2)} on average.`,
  });
  drawBars(byId("time-chart"), {
    ...shared,
    series: [
      { name: "verify", values: rounds.map((round) => round.verify_ms) },
      { name: "draft", values: rounds.map((round) => round.draft_wait_ms) },
    ],
    label:
      draft === null
        ? "No rounds yet."
        : `Milliseconds of each round; on average draft ${draft.toFixed(1)}, verify ${run.meanMs(run.verifyMs).toFixed(1)}.`,
  });
}

function selectRound(index) {
  stopReplay();
  showRound(index);
}

/** While a run goes on, its newest round is followed again once the user is back there. */
function showRound(index) {
  if (run === null || index < 0 || index >= run.rounds.length) return;
  selected = index === run.rounds.length - 1 ? null : index;
  drawRound();
}

function shownRound() {
  return selected ?? run.rounds.length - 1;
}

function startReplay() {
  if (shownRound() === run.rounds.length - 1) showRound(0);
  byId("replay").textContent = "Pause";
  replaying = setInterval(() => {
    showRound(shownRound() + 1);
    if (selected === null) stopReplay();
  }, REPLAY_MS);
}

function stopReplay() {
  clearInterval(replaying);
  replaying = null;
  byId("replay").textContent = "Replay";
}

function setRunning(running) {
  byId("run").disabled = running;
  byId("stop").disabled = !running;
  document.body.classList.toggle("running", running);
  if (running) showStatus("Running…");
}

function showStatus(message) {
  byId("status").textContent = message;
}

/** Kept in its field only. */
function apiKey() {
  return byId("authorization").value.trim();
}

/** Show what is wrong, at the field that is to blame too. */
function showError(error) {
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
  byId("error").hidden = error === null;
  byId("error").textContent = error?.message ?? "";
  if (error?.param === "authorization") byId("key-row").hidden = false;
  const field = error?.param ? form.elements.namedItem(error.param) : null;
  if (field instanceof HTMLElement) {
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", "error");
    field.focus();
  }
}

function showHint() {
  byId("mode-hint").textContent = HINTS[form.elements.speculation.value];
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

async function showModel() {
  try {
    byId("model").textContent = await servedModel(apiKey());
    showError(null);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showError(error);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (abort === null) start();
});
form.addEventListener("change", showHint);
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") abort?.abort();
});
byId("authorization").addEventListener("change", showModel);
byId("stop").addEventListener("click", () => abort?.abort());
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    byId("prompt").value = `${example.textContent}\n`;
    byId("prompt").focus();
  });
}
slider.addEventListener("input", () => selectRound(Number(slider.value)));
byId("previous").addEventListener("click", () => selectRound(shownRound() - 1));
byId("next").addEventListener("click", () => selectRound(shownRound() + 1));
byId("replay").addEventListener("click", () => (replaying === null ? startReplay() : stopReplay()));
// A chart is as wide as its card.
new ResizeObserver(() => run && drawCharts(Math.max(shownRound(), 0))).observe(byId("length-chart"));

byId("prompt").value ||= 'class Queue:\n    """A first-in, first-out queue."""\n';
showHint();
showModel();
