/** The page at `/`: asks the models over REST. The metadata of a model says what it takes and what it returns. */

import {showAnswer} from "./answers.js";
import {explain, hide, showLayer} from "./attention.js";
import {$, make} from "./elements.js";
import {call} from "./server.js";

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
    hide();
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
  hide();
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
  $("answer").replaceChildren(...showAnswer(row, texts, asked));
  const [queue, compute] = timing.match(/[\d.]+/g);
  $("latency").textContent = `${took.toFixed(0)} ms round trip: ${compute} ms in the model, ${queue} ms in its queue`;
  if (asked.explains) await explain(asked, texts);
}

// Event handlers, and the start.

$("model").onchange = () => guarded(chooseModel);
$("layer").onchange = () => guarded(showLayer);
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
