import { Listener, Recorder } from "./listener.js";
import { ask, person, send, setPerson } from "./server.js";

const at = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

const STREAMS = {
  counting: "counting the words it hears, here",
  learning: "learning from use, here",
  keeping: "keeping corrections on this disk, encrypted, for a day at most",
  marginals: "sending bounded, noised word counts",
  deltas: "sending bounded, noised changes of the model",
  words: "naming a few new words that you gave",
};

const history = []; // of each result: words heard, words corrected

function trouble(error) {
  at("trouble").hidden = !error;
  at("trouble").textContent = error ? error.message ?? String(error) : "";
}

const careful = (action) => async (...given) => {
  try {
    trouble(null);
    return await action(...given);
  } catch (error) {
    if (error.status === 401) at("token-field").hidden = false;
    trouble(error);
    return null;
  }
};

// Results.

function showResult(result) {
  const item = make("li", { id: result.id });
  history.push({ id: result.id, heard: result.text.split(" ").length, wrong: 0 });
  item.append(words(item, result), acts(item, result), list(result));
  at("results").prepend(item);
  plot();
}

function words(item, result) {
  const line = make("p", { className: "words" });
  result.nbest[0].words.forEach((word, place) => {
    const button = make("button", { textContent: word.text, title: `${Math.round(100 * word.confidence)} % sure: click to correct` });
    button.classList.toggle("unsure", word.confidence < 0.5);
    button.addEventListener("click", () => correct(item, result, place, button));
    line.append(button);
  });
  if (!result.text) line.append(make("em", { textContent: "nothing" }));
  return line;
}

function correct(item, result, place, button) {
  const input = make("input", { value: button.textContent, ariaLabel: `What you said in place of ${button.textContent}` });
  const done = careful(async (keep) => {
    if (!input.isConnected) return;
    const said = keep ? input.value.trim().toLowerCase() : button.textContent;
    button.textContent = said || "·";
    input.replaceWith(button);
    button.focus();
    if (keep && said !== result.nbest[0].words[place].text) {
      const text = [...item.querySelectorAll(".words button")].map((each) => each.textContent).filter((each) => each !== "·").join(" ");
      await tell(item, result, { text }, "corrected");
      const own = history.find((each) => each.id === result.id);
      own.wrong = text.split(" ").filter((each, index) => each !== result.text.split(" ")[index]).length;
      plot();
      await refresh();
    }
  });
  button.replaceWith(input);
  input.focus();
  input.select();
  input.addEventListener("blur", () => done(true));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") done(true);
    if (event.key === "Escape") done(false);
  });
}

function acts(item, result) {
  const line = make("div", { className: "acts" });
  for (const [what, name] of [["accepted", "Accept"], ["cancelled", "Cancel"]]) {
    const button = make("button", { textContent: name });
    button.addEventListener("click", careful(() => tell(item, result, { [what]: true }, what)));
    line.append(button);
  }
  line.append(make("span", { className: "told", role: "status" }));
  return line;
}

async function tell(item, result, what, told) {
  await ask("POST", "/v1/feedback", { id: result.id, ...what });
  item.querySelector(".told").textContent = told;
}

function list(result) {
  const parts = Object.keys(result.nbest[0].parts);
  const head = make("tr", {}, make("th", { scope: "col", textContent: "Heard" }));
  for (const name of ["score", ...parts]) head.append(make("th", { scope: "col", className: "number", textContent: name }));
  const body = make("tbody");
  for (const each of result.nbest) {
    const row = make("tr", {}, make("td", { textContent: each.text || "(nothing)" }));
    for (const value of [each.score, ...parts.map((name) => each.parts[name])]) {
      row.append(make("td", { className: "number", textContent: value.toFixed(1) }));
    }
    body.append(row);
  }
  const table = make("table", {}, make("thead", {}, head), body);
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "What else it could have been, scores in nats" }, table);
  return make("details", {}, make("summary", { textContent: "What else it could have been" }), scroll);
}

function plot() {
  const recent = history.slice(-40);
  const shares = recent.map((_, index) => {
    const some = recent.slice(Math.max(0, index - 4), index + 1);
    return some.reduce((sum, each) => sum + each.wrong, 0) / some.reduce((sum, each) => sum + each.heard, 0.001);
  });
  const step = 320 / Math.max(1, shares.length - 1);
  const points = shares.map((share, index) => `${(index * step).toFixed(1)},${(76 - 72 * Math.min(1, share)).toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points.join(" "));
  at("errors").replaceChildren(line);
  const now = Math.round(100 * (shares.at(-1) ?? 0));
  at("errors-caption").textContent = `Words you corrected, of those that were heard: ${now} % of late, ${history.length} utterances since this page opened.`;
}

// Vocabulary, what was learned, consent.

function showPhrases({ phrases }) {
  at("vocabulary").replaceChildren(...phrases.map((each) => {
    const heard = each.spellings.length ? ` (heard as ${each.spellings.join(", ")})` : "";
    const remove = make("button", { textContent: "Remove", ariaLabel: `Remove ${each.phrase}` });
    remove.addEventListener("click", careful(async () => {
      await changePhrases("DELETE", `/v1/me/vocabulary?phrase=${encodeURIComponent(each.phrase)}`);
    }));
    return make("li", {}, make("span", { textContent: `${each.phrase}${heard}, from ${each.source}` }), remove);
  }));
}

function showMe(me) {
  at("learned").replaceChildren(...me.sentences.map((textContent) => make("li", { textContent })));
  at("consent").replaceChildren(at("consent").querySelector("legend"), ...Object.entries(STREAMS).map(([stream, what]) => {
    const box = make("input", { type: "checkbox", checked: me.consent[stream], name: stream });
    box.addEventListener("change", careful(async () => {
      await ask("PUT", "/v1/me/consent", { [stream]: box.checked });
      await refresh();
    }));
    return make("label", {}, box, what);
  }));
  const sends = me.consent.marginals;
  at("next-text").textContent = sends
    ? `This server sends nothing. An app that reports for you from here would draw on these counts; ${me.waiting} reports wait.`
    : "You have not agreed to send word counts: none is sent. This is what would be.";
  at("next").querySelector("tbody").replaceChildren(...me.pending.map(([word, count]) =>
    make("tr", {}, make("td", { textContent: word }), make("td", { className: "number", textContent: count.toFixed(1) }))));
}

// Answers may overtake each other: one is shown only where nothing newer was asked for.
const newest = (show) => {
  let count = 0;
  return async (answer) => {
    const own = ++count;
    const found = await answer;
    if (own === count) show(found);
    return own === count;
  };
};
const newestMe = newest(showMe);
const newestPhrases = newest(showPhrases);

const refresh = careful(() => Promise.all([newestMe(ask("GET", "/v1/me")), newestPhrases(ask("GET", "/v1/me/vocabulary"))]));

async function changePhrases(method, path, body) {
  if (!(await newestPhrases(ask(method, path, body)))) await refresh();
}

// The microphone.

const listener = new Listener({
  partial: ({ text }) => { at("partial").textContent = text; },
  result: (result) => { at("partial").textContent = ""; showResult(result); setTimeout(refresh, 500); },
  error: trouble,
  state: (on) => {
    at("microphone").setAttribute("aria-pressed", String(on));
    at("microphone").textContent = on ? "Stop" : "Listen";
  },
});

at("microphone").addEventListener("click", careful(() => (listener.on ? listener.stop() : listener.start())));

at("add").addEventListener("submit", careful(async (event) => {
  event.preventDefault();
  const form = event.target;
  const spellings = form.spellings.value.split(",").map((each) => each.trim()).filter(Boolean);
  await changePhrases("POST", "/v1/me/vocabulary", { phrase: form.phrase.value, spellings });
  form.reset();
}));

at("undo").addEventListener("click", careful(() => changePhrases("POST", "/v1/me/vocabulary/undo")));

at("forget").addEventListener("submit", careful(async (event) => {
  event.preventDefault();
  await ask("POST", "/v1/me/forget", { forget: true });
  event.target.reset();
  at("results").replaceChildren();
  history.length = 0;
  plot();
  await refresh();
}));

at("who").addEventListener("submit", careful(async (event) => {
  event.preventDefault();
  await listener.stop();
  setPerson(event.target.person.value.trim(), event.target.token.value);
  await refresh();
}));

// Reading aloud.

const recorder = new Recorder();

function showReading({ phrase, read, most, stopped }) {
  at("phrase").textContent = phrase ? `${read + 1} of ${most}: “${phrase}”` : "";
  at("begin-reading").hidden = true;
  at("read").hidden = !phrase;
  at("end-reading").hidden = false;
  if (!phrase) endReading(stopped);
}

const endReading = careful(async () => {
  const found = await ask("DELETE", "/v1/me/enrolment");
  for (const id of ["read", "end-reading"]) at(id).hidden = true;
  at("begin-reading").hidden = false;
  at("phrase").textContent = "";
  const points = (share) => Math.round(100 * share);
  const interval = `${points(found.low)} to ${points(found.high)} points`;
  const what = found.kept ? "What it learned is kept." : "It did not help, and was taken back.";
  at("reading-report").textContent = `${found.phrases} phrases; of ${found.aside} kept aside ${points(found.before)} % of the words were wrong before, ${points(found.after)} % after (${interval}). ${what}`;
  await refresh();
});

at("begin-reading").addEventListener("click", careful(async () => showReading(await ask("POST", "/v1/me/enrolment"))));
at("end-reading").addEventListener("click", () => endReading());
at("read").addEventListener("click", careful(async () => {
  const button = at("read");
  if (!recorder.on) {
    await recorder.start();
    button.setAttribute("aria-pressed", "true");
    button.textContent = "Done";
    return;
  }
  const { samples, rate } = await recorder.stop();
  button.setAttribute("aria-pressed", "false");
  button.textContent = "Read this";
  button.disabled = true;
  try {
    showReading(await send("PUT", `/v1/me/enrolment?rate=${rate}`, samples));
  } finally {
    button.disabled = false;
  }
}));

at("who").person.value = person().name;
refresh();
