/** The page at `/`: asks the models over REST. The metadata of a model says what it takes and what it returns. */

import {showAnswer} from "./answers.js";
import {$, make} from "./elements.js";
import {findExamples} from "./examples.js";
import {asCurl, call} from "./server.js";
import {hide, weighWords} from "./words.js";

const LABELS = {text: "Text", text_pair: "Second text", question: "Question", context: "Context", prompt: "Prompt",
                choices: "Choices, a line each"};
let model;

async function guarded(work) {
  $("answer").ariaBusy = "true";
  try {
    await work();
  } catch (error) {
    say(error.message, "error");
  }
  $("answer").ariaBusy = "false";
}

function say(text, className = "quiet") {
  if ($("answer").textContent === text) return; // a screen reader would read it out again
  $("answer").replaceChildren(make("p", {className}, text));
  $("latency").textContent = "";
  hide();
}

/** The metadata of a model, as soon as the model is loaded; undefined if another one has been chosen meanwhile. */
async function waitForMetadata(name) {
  const path = `v1/models/${name}`;
  while ($("model").value === name) {
    const [{model_version_status: versions = []}] = await call(path);
    if (versions.some(({state}) => state === "AVAILABLE")) {
      try {
        return (await call(`${path}/metadata`))[0];
      } catch (error) {
        if (error.status !== 503) throw error; // another worker of the server answered, which is still loading
      }
    }
    if ($("model").value !== name) return;
    const failed = versions.find(({state, status}) => state === "END" && status?.error_message);
    const isLoading = !failed || versions.some(({state}) => state === "LOADING");
    $("answer").ariaBusy = "false"; // the message is complete
    $("version").textContent = "";
    if (isLoading) say(versions.length ? "The model is loading." : "The model has no version yet.");
    else say(`The model cannot be loaded: ${failed.status.error_message}`, "error");
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

function showExamples(names, display, hangul) {
  const buttons = findExamples(names, display, hangul).map(({lang, texts}) => make(
    "button", {type: "button", lang, onclick: () => {
      for (const name of names) model.fields[name].value = texts[name];
      model.fields[names[0]].focus();
    }}, texts[names[0]]));
  $("examples").replaceChildren($("examples-title"), ...buttons);
  $("examples").hidden = !buttons.length;
}

async function chooseModel() {
  const {value: name} = $("model");
  const path = `v1/models/${name}`;
  $("question").inert = true;
  const loaded = await waitForMetadata(name);
  if (!loaded || name !== $("model").value) return; // another was chosen meanwhile
  const {metadata, model_spec: spec} = loaded;
  const signatures = metadata.signature_def.signature_def;
  const {inputs, outputs} = signatures.serving_default;
  const order = Object.keys(LABELS);
  const names = Object.keys(inputs).sort((a, b) => order.indexOf(a) - order.indexOf(b));
  if (!names.every((name) => inputs[name].dtype === "DT_STRING")) throw new Error("This model does not take texts.");
  const old = model?.fields ?? {};
  model = {path: `${path}:predict`, labels: metadata.labels, display: metadata.display,
    threshold: metadata.threshold, outputs: Object.keys(outputs),
    weighs: "word_weights" in signatures, lists: names.filter((name) => inputs[name].tensor_shape.dim.length > 1)};
  model.fields = Object.fromEntries(names.map((name) => [name, make(
    "textarea", {id: `field-${name}`, rows: 3, required: true, value: old[name]?.value ?? ""})]));
  $("fields").replaceChildren(...names.flatMap((name) => [
    make("label", {htmlFor: `field-${name}`}, LABELS[name] ?? name), model.fields[name]]));
  $("fields").dataset.model = spec.name;
  $("question").inert = false;
  $("version").textContent = `version ${spec.version}`;
  showExamples(names, model.display, metadata.hangul);
  say("Nothing asked yet.");
}

async function ask() {
  const asked = model;
  const lines = (text) => text.split("\n").filter((line) => line.trim());
  const texts = Object.fromEntries(Object.entries(model.fields).map(
    ([name, {value}]) => [name, model.lists.includes(name) ? lines(value) : value]));
  const body = {instances: [texts]}, start = performance.now();
  const [{predictions: [answer]}, timing] = await call(model.path, body);
  const took = performance.now() - start;
  if (model !== asked) return;
  const row = model.outputs.length === 1 ? {[model.outputs[0]]: answer} : answer;
  $("answer").replaceChildren(...showAnswer(row, texts, asked), make(
    "details", {id: "request"}, make("summary", {}, "The request"), make("code", {}, asCurl(asked.path, body))));
  const [queue, compute] = timing.match(/[\d.]+/g);
  $("latency").textContent = `${took.toFixed(0)} ms round trip: ${compute} ms in the model, ${queue} ms in its queue`;
  $("no-words").hidden = asked.weighs;
  if (asked.weighs) weighWords(asked, texts, row); // not awaited: it takes longer than the answer
}

// Event handlers, and the start.

$("model").onchange = () => guarded(chooseModel);
$("question").onsubmit = (event) => {
  event.preventDefault();
  const blank = Object.values(model.fields).find(({value}) => !value.trim());
  if (blank) {
    blank.value = "";
    blank.reportValidity();
  } else guarded(ask);
};
$("question").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("question").requestSubmit();
};
guarded(async () => {
  const [{models}] = await call("v1/models");
  $("model").replaceChildren(...models.map((name) => make("option", {}, name)));
  await chooseModel();
});
