/** The words of the texts, shaded by how much they count: of the signature `word_weights`. */

import {$, make, percent} from "./elements.js";
import {call} from "./server.js";

const MOST_LABELS = 5;
const MOST_NAMED = 5; // words in the line below the texts
const VISIBLE = .05; // of the strongest word's shade
let shown = {};

/** Asks and shows; an error hides the section, and the answer stays. */
export async function weighWords(model, texts, answer) {
  shown = {texts, labels: model.labels};
  $("inside").inert = true; // what it shows is of the texts before
  $("inside").ariaBusy = "true";
  try {
    const [{predictions: [row]}] = await call(model.path, {signature_name: "word_weights", instances: [texts]});
    if (shown.texts !== texts) return; // another was asked for meanwhile
    shown.words = row.word_start.map((start, i) => (
      {start, end: row.word_end[i], segment: row.word_segment[i], weights: row.word_weight[i]}
    )).filter(({start}) => start >= 0);
    showLabels(answer.probabilities ?? [0]);
    $("inside").inert = $("inside").hidden = false;
  } catch (error) {
    if (shown.texts !== texts) return;
    hide();
    $("answer").append(make("p", {className: "error"}, `Which words count: ${error.message}`));
  }
  $("inside").ariaBusy = "false";
}

export function hide() {
  shown = {};
  $("inside").hidden = $("no-words").hidden = true;
  $("inside").ariaBusy = "false";
}

/** The labels that words can count for, the most probable first. */
function showLabels(scores) {
  const best = [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, MOST_LABELS);
  $("for-label").hidden = !shown.labels;
  $("label").replaceChildren(...best.map((i) => make(
    "option", {value: i}, shown.labels ? `${shown.labels[i]} ${percent(scores[i])}` : "the answer")));
  showWords();
}

function showWords() {
  const column = Number($("label").value);
  shown.words.forEach((word) => { word.weight = word.weights[column]; });
  // Weights that are all next to nothing are not shaded.
  const most = Math.max(...shown.words.map(({weight}) => Math.abs(weight)));
  const counts = most >= (shown.labels ? .01 : 1e-6);
  shown.words.forEach((word) => { word.share = counts ? Math.abs(word.weight) / most : 0; });
  $("words").replaceChildren(...Object.values(shown.texts).map((text, segment) => {
    const characters = [...text]; // offsets count code points
    const parts = [];
    let before = 0;
    for (const word of shown.words.filter((word) => word.segment === segment)) {
      word.text = characters.slice(word.start, word.end).join("");
      parts.push(characters.slice(before, word.start).join(""), makeWord(word));
      before = word.end;
    }
    return make("p", {className: "text"}, ...parts, characters.slice(before).join(""));
  }));
  showStrongest();
}

/** A radio button in a label: one stop of the Tab key for all words, and the arrow keys within them. */
function makeWord(word) {
  const {share} = word;
  const side = share < VISIBLE ? "" : word.weight < 0 ? "against" : "for";
  const show = () => { $("weights").textContent = named(word); };
  const label = make("label", {className: `word ${side}`, title: format(word.weight), share},
    make("input", {type: "radio", name: "word", onchange: show}), word.text);
  label.onpointerenter = show;
  return label;
}

/** A weight in percentage points if it is that of a probability. */
function format(weight) {
  const options = shown.labels ? {minimumFractionDigits: 1, maximumFractionDigits: 1} : {maximumSignificantDigits: 3};
  const number = (shown.labels ? 100 * weight : weight).toLocaleString("en", {signDisplay: "exceptZero", ...options});
  return shown.labels ? `${number} points` : number;
}

const named = ({text, weight}) => `${text} ${format(weight)}`;

function showStrongest() {
  const strongest = shown.words.filter(({share}) => share >= VISIBLE).sort((a, b) => b.share - a.share);
  $("weights").textContent = strongest.slice(0, MOST_NAMED).map(named).join(" · ")
    || `No word alone changes the ${shown.labels ? "probability by a point" : "answer"}.`;
}

$("label").onchange = showWords;
$("words").onpointerleave = () => { if (shown.words) showStrongest(); };
