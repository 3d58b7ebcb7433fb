/** The page at `/`: asks the models over REST. The metadata of a model says what it takes and what it returns. */

const $ = (id) => document.getElementById(id);
const percent = (value) => `${(100 * value).toFixed(1)}%`;

/** An element; properties that are no property of it are CSS variables. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.style.setProperty(`--${name}`, value);
  }
  element.append(...children);
  return element;
}

// Texts. Offsets count code points; JavaScript's own count UTF-16.

const slice = (text, start, end) => [...text].slice(start, end).join("");

/** An angle of the colour wheel for each label, far from those before it. */
function hue(label) {
  hues.add(label);
  return ([...hues].indexOf(label) * 137 + 40) % 360;
}

const hues = new Set();

/** The text with its spans marked, a list of {start, end, label}. */
function highlight(text, spans) {
  const parts = [];
  let before = 0;
  for (const {start, end, label} of spans.toSorted((a, b) => a.start - b.start)) {
    parts.push(slice(text, before, start), make("mark", {hue: hue(label)}, slice(text, start, end),
      ...(label ? [make("small", {}, label)] : [])));
    before = end;
  }
  return make("p", {className: "text"}, ...parts, slice(text, before));
}

// Answers, one function for each kind of model, told apart by the name of an output.

const VIEWS = {choice: showChoice, entity_start: showTags, answer: showSpan, label: showLabel, value: showValue};

function bars(rows, best = 0) {
  return make("ol", {className: "bars"}, ...rows.map(([name, value, label], i) => make(
    "li", {className: i === best ? "best" : label ? "labelled" : "", share: value, hue: hue(label)},
    make("span", {}, name), make("i"), make("b", {}, percent(value)))));
}

function showLabel({label, score, probabilities, in_scope: inScope}) {
  const rows = model.labels ? model.labels.map((name, i) => [name, probabilities[i]]) : [[label, score]];
  rows.sort((a, b) => b[1] - a[1]);
  const rest = rows.splice(8);
  return [make("p", {className: "headline"}, label),
    ...(inScope === false ? [make("p", {className: "error"}, "Out of scope: the score is below the threshold.")] : []),
    bars(rows),
    ...(rest.length ? [make("details", {}, make("summary", {}, `${rest.length} more`), bars(rest, -1))] : [])];
}

function showValue({value}) {
  return [make("p", {className: "headline number"}, value.toLocaleString("en", {maximumSignificantDigits: 5}))];
}

function showTags(row, {text}) {
  const found = (what) => row[`${what}_start`].map((start, i) => (
    {start, end: row[`${what}_end`][i], label: row[`${what}_label`][i], score: row[`${what}_score`][i]}
  )).filter(({start}) => start >= 0);
  const named = ({start, end, label, score}) => [
    `${slice(text, start, end)} · ${label}`, score, label !== "O" && label];
  const entities = found("entity");
  return [highlight(text, entities),
    entities.length ? bars(entities.map(named), -1) : make("p", {className: "quiet"}, "No entities."),
    make("details", {}, make("summary", {}, "Each word"), bars(found("word").map(named), -1))];
}

function showSpan({answer, start, end, score}, {context}) {
  if (start < 0) return [make("p", {className: "headline"}, "No answer in this context"), bars([["No answer", score]])];
  return [make("p", {className: "headline"}, answer), highlight(context, [{start, end}]), bars([[answer, score]])];
}

function showChoice({choice, probabilities}, {choices}) {
  return [make("p", {className: "headline"}, choices[choice]),
    bars(choices.map((name, i) => [name, probabilities[i]]), choice)];
}

function showOther(row) {
  return Object.entries(row).map(([name, value]) => make(
    "p", {}, make("b", {}, name), make("code", {}, JSON.stringify(value).slice(0, 400))));
}

// The server.

let token = "";

/** Asks; returns the answer and the server's own times. Without a body it is GET. */
async function call(path, body) {
  const bytes = new TextEncoder().encode(`Bearer ${token}`); // a header holds bytes, each as one character
  const headers = token ? {Authorization: String.fromCharCode(...bytes)} : {};
  const response = await fetch(path, {headers, ...(body && {method: "POST", body: JSON.stringify(body)})});
  if (response.status === 401) {
    await askToken();
    return call(path, body);
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return [answer, response.headers.get("Server-Timing")];
}

function askToken() {
  $("door-message").textContent = token && "The server did not take that one.";
  $("token").value = "";
  $("door").returnValue = "";
  $("door").showModal();
  return new Promise((resolve, reject) => {
    $("door").onclose = () => {
      token = $("token").value;
      token ? resolve() : reject(new Error("The server asks for a token. Reload the page to give it."));
    };
  });
}

// The model and the question.

const LABELS = {text: "Text", text_pair: "Second text", question: "Question", context: "Context", prompt: "Prompt",
                choices: "Choices, a line each"};
let model;

async function guarded(work) {
  $("answer").ariaBusy = "true";
  try {
    await work();
  } catch (error) {
    $("answer").replaceChildren(make("p", {className: "error"}, error.message));
    $("latency").textContent = "";
    $("inside").hidden = true;
  }
  $("answer").ariaBusy = "false";
}

async function chooseModel() {
  $("question").inert = true;
  const path = `v1/models/${$("model").value}`;
  const [{metadata, model_spec: spec}] = await call(`${path}/metadata`);
  if (spec.name !== $("model").value) return; // another was chosen meanwhile
  const signatures = metadata.signature_def.signature_def;
  const {inputs, outputs} = signatures.serving_default;
  const order = Object.keys(LABELS);
  const names = Object.keys(inputs).sort((a, b) => order.indexOf(a) - order.indexOf(b));
  if (!names.every((name) => inputs[name].dtype === "DT_STRING")) throw new Error("This model does not take texts.");
  const old = model?.fields ?? {};
  model = {path: `${path}:predict`, labels: metadata.labels, outputs: Object.keys(outputs),
    explains: "explain" in signatures, lists: names.filter((name) => inputs[name].tensor_shape.dim.length > 1)};
  model.fields = Object.fromEntries(names.map((name) => [name, make(
    "textarea", {id: `field-${name}`, rows: 3, required: model.lists.includes(name),
      value: old[name]?.value ?? ""})]));
  $("fields").replaceChildren(...names.flatMap((name) => [
    make("label", {htmlFor: `field-${name}`}, LABELS[name] ?? name), model.fields[name]]));
  $("fields").dataset.model = spec.name;
  $("question").inert = false;
  $("version").textContent = `version ${spec.version}`;
  $("answer").replaceChildren(make("p", {className: "quiet"}, "Nothing asked yet."));
  $("latency").textContent = "";
  $("inside").hidden = true;
}

async function ask() {
  const asked = model;
  const lines = (text) => text.split("\n").filter((line) => line.trim());
  const texts = Object.fromEntries(Object.entries(model.fields).map(
    ([name, {value}]) => [name, model.lists.includes(name) ? lines(value) : value]));
  const start = performance.now();
  const [{predictions: [answer]}, timing] = await call(model.path, {instances: [texts]});
  const took = performance.now() - start;
  if (model !== asked) return;
  const row = model.outputs.length === 1 ? {[model.outputs[0]]: answer} : answer;
  const kind = Object.keys(VIEWS).find((name) => name in row);
  $("answer").replaceChildren(...(VIEWS[kind] ?? showOther)(row, texts));
  const [queue, compute] = timing.match(/[\d.]+/g);
  $("latency").textContent = `${took.toFixed(0)} ms round trip: ${compute} ms in the model, ${queue} ms in its queue`;
  if (model.explains) await explain(texts);
}

// Tokens and attention, of the signature `explain`, a layer at a time: all of them are many megabytes.

const HEAT = [234, 88, 12];
let seen = {};

async function askExplain(texts, layers) {
  const inputs = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, [text]]));
  const [{outputs}] = await call(model.path, {signature_name: "explain", inputs: {...inputs, layers}});
  return Object.fromEntries(Object.entries(outputs).map(([name, rows]) => [name, rows[0]]));
}

async function explain(texts) {
  const shortest = Object.fromEntries(
    Object.entries(texts).map(([name, text]) => [name, text instanceof Array ? ["a"] : "a"]));
  model.layers ??= (await askExplain(shortest, [])).attention.length;
  $("layer").max = model.layers;
  seen = {texts, head: 0, token: 0};
  await showLayer();
  $("inside").hidden = false;
}

async function showLayer() {
  const layer = $("layer").valueAsNumber;
  $("layer-shown").textContent = `${layer} of ${model.layers}`;
  const {texts} = seen;
  const found = await askExplain(texts, [layer - 1]);
  if (seen.texts !== texts || $("layer").valueAsNumber !== layer) return; // another was asked for meanwhile
  Object.assign(seen, found, {attention: found.attention[0], tokens: found.tokens.filter(Boolean)});
  $("heads").replaceChildren(...seen.attention.map((weights, head) => {
    const canvas = make("canvas");
    paint(canvas, weights);
    return make("label", {}, choice("head", head), canvas, make("span", {}, head + 1));
  }));
  const strings = Object.values(texts);
  $("tokens").replaceChildren(...seen.tokens.map((piece, i) => {
    const [start, end] = [seen.starts[i], seen.ends[i]];
    const label = make("label", {className: `segment${seen.segment[i]}`}, choice("token", i), make("span", {}, piece));
    if (start >= 0) {
      label.title = slice([strings[seen.segment[i]]].flat()[0], start, end);
      label.append(make("small", {}, `${start}–${end}`));
    }
    label.onpointerenter = () => showToken(i);
    return label;
  }));
  $("tokens").onpointerleave = () => showToken(seen.token);
  showHead();
}

/** A radio button: one stop of the Tab key for a group, and the arrow keys within it. */
function choice(what, i) {
  const show = what === "head" ? showHead : showToken;
  return make("input", {type: "radio", name: what, value: i, checked: seen[what] === i, onchange: () => {
    seen[what] = i;
    show(i);
  }});
}

/** Draws weights, a pixel each. */
function paint(canvas, weights) {
  const size = canvas.width = canvas.height = seen.tokens.length;
  const pixels = weights.slice(0, size).flatMap(
    (row) => row.slice(0, size).flatMap((weight) => [...HEAT, 255 * Math.sqrt(weight)]));
  canvas.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(pixels), size), 0, 0);
}

function showHead() {
  paint($("picture"), seen.attention[seen.head]);
  $("picture").ariaLabel = `Attention of layer ${$("layer").value}, head ${seen.head + 1}`;
  showToken(seen.token);
}

function showToken(i) {
  const weights = seen.attention[seen.head][i];
  const most = Math.max(...weights);
  for (const [j, label] of [...$("tokens").children].entries()) {
    label.style.setProperty("--share", weights[j] / most);
    label.classList.toggle("from", i === j);
  }
  $("row").style.setProperty("--row", i);
  $("row").style.setProperty("--rows", seen.tokens.length);
  const strongest = seen.tokens.map((piece, j) => [weights[j], piece]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  const named = strongest.map(([weight, piece]) => `${piece} ${percent(weight)}`);
  $("looks").textContent = `${seen.tokens[i]} looks at ${named.join(", ")}`;
}

// What starts it all.

$("model").onchange = () => guarded(chooseModel);
$("layer").onchange = () => guarded(showLayer);
$("picture").onpointermove = ({offsetY}) => showToken(
  Math.min(Math.floor(offsetY / $("picture").clientHeight * seen.tokens.length), seen.tokens.length - 1));
$("picture").onpointerleave = () => showToken(seen.token);
$("question").onsubmit = (event) => {
  event.preventDefault();
  guarded(ask);
};
$("question").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("question").requestSubmit();
};
guarded(async () => {
  const [{models}] = await call("v1/models");
  $("model").replaceChildren(...models.map((name) => make("option", {}, name)));
  await chooseModel();
});
