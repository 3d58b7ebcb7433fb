/** Tokens and attention, of the signature `explain`, a layer at a time: all of them are many megabytes. */

import {$, make, percent, slice} from "./elements.js";
import {call} from "./server.js";

const HEAT = [234, 88, 12];
const MOST_NAMED = 32; // tokens beside the picture; more would be too small to read
let seen = {};

async function ask(model, texts, layers) {
  const inputs = Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, [text]]));
  const [{outputs}] = await call(model.path, {signature_name: "explain", inputs: {...inputs, layers}});
  return Object.fromEntries(Object.entries(outputs).map(([name, rows]) => [name, rows[0]]));
}

/** Marks the section as busy until the work is done; an error hides it, and the answer stays. */
async function guarded(work) {
  const {texts} = seen;
  $("inside").ariaBusy = "true";
  try {
    await work();
  } catch (error) {
    if (seen.texts !== texts) return; // another was asked for meanwhile
    hide();
    $("answer").append(make("p", {className: "error"}, `Tokens and attention: ${error.message}`));
  }
  if (seen.texts === texts) $("inside").ariaBusy = "false";
}

export function explain(model, texts) {
  const shortest = Object.fromEntries(
    Object.entries(texts).map(([name, text]) => [name, text instanceof Array ? ["a"] : "a"]));
  seen = {model, texts, head: 0, token: 0};
  $("inside").inert = true; // what it shows is of the texts before
  return guarded(async () => {
    model.layers ??= (await ask(model, shortest, [])).attention.length;
    if (seen.texts !== texts) return;
    if ($("layer").max !== String(model.layers)) $("layer").max = $("layer").value = model.layers;
    await showLayer();
    if (seen.texts !== texts) return; // the section is another answer's
    $("inside").inert = $("inside").hidden = false;
  });
}

export function hide() {
  seen = {};
  $("inside").hidden = $("no-attention").hidden = true;
  $("inside").ariaBusy = "false";
}

export const changeLayer = () => guarded(showLayer);

async function showLayer() {
  const layer = $("layer").valueAsNumber;
  const {model, texts} = seen;
  $("layer-shown").textContent = `${layer} of ${model.layers}`;
  const found = await ask(model, texts, [layer - 1]);
  if (seen.texts !== texts || $("layer").valueAsNumber !== layer) return; // nor is this one wanted
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
  const named = seen.tokens.length > MOST_NAMED ? [] : seen.tokens;
  for (const axis of ["rows", "columns"]) $(axis).replaceChildren(...named.map((piece) => make("span", {}, piece)));
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
  $("looks").textContent = `${seen.tokens[i]} attends to ${named.join(", ")}`;
}

$("picture").onpointermove = ({offsetY}) => showToken(
  Math.min(Math.floor(offsetY / $("picture").clientHeight * seen.tokens.length), seen.tokens.length - 1));
$("picture").onpointerleave = () => showToken(seen.token);
