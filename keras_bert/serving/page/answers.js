/** How answers are shown. */

import {make, percent, slice} from "./elements.js";

// By the kinds of display that a task states, see `Display` in keras_bert/tasks/base.py.
const VIEWS = {choice: showChoice, entities: showEntities, frame: showFrame, span: showSpan, label: showLabel,
               labels: showLabels, value: showValue, score: showScore};

/** Elements for the answer to texts, a dict of outputs. */
export function showAnswer(row, texts, model) {
  return (VIEWS[model.display] ?? showOutputs)(row, texts, model);
}

function bars(rows, best = 0) {
  return make("ol", {className: "bars"}, ...rows.map(([name, value, label], i) => make(
    "li", {className: i === best ? "best" : label ? "labelled" : "", share: value, hue: hue(label)},
    make("span", {}, name), make("i"), make("b", {}, percent(value)))));
}

/** The highest bars first; those after the eighth are folded. */
function sortedBars(rows, best) {
  rows.sort((a, b) => b[1] - a[1]);
  const rest = rows.splice(8);
  return [bars(rows, best),
    ...(rest.length ? [make("details", {}, make("summary", {}, `${rest.length} more`), bars(rest, -1))] : [])];
}

function showLabel({label, score, probabilities, in_scope: inScope}, texts, {labels, threshold}) {
  const rows = labels ? labels.map((name, i) => [name, probabilities[i]]) : [[label, score]];
  if (inScope !== false) return [make("p", {className: "headline"}, label), ...sortedBars(rows)];
  return [make("p", {className: "headline outside"}, "Out of scope"),
    make("p", {className: "quiet"}, `The score of the nearest label, ${label}, is below the threshold${
      threshold === undefined ? "" : `, ${percent(threshold)}`}.`),
    ...sortedBars(rows, -1)];
}

function showLabels({labels: held, probabilities, holds}, texts, {labels}) {
  const rows = labels.map((name, i) => [name, probabilities[i], holds[i] && name]);
  return [make("p", {className: "headline"}, held.filter((name) => name).join(", ") || "No label"),
    ...sortedBars(rows, -1)];
}

function showValue({value}) {
  return [make("p", {className: "headline number"}, value.toLocaleString("en", {maximumSignificantDigits: 5}))];
}

function showScore({score}) {
  return showValue({value: score});
}

function showEntities(row, {text}) {
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

function showFrame(row, texts, model) {
  return [...showLabel(row, texts, model), ...showEntities(row, texts)];
}

function showSpan({answer, start, end, score}, {context}) {
  if (start < 0) return [make("p", {className: "headline"}, "No answer in this context"), bars([["No answer", score]])];
  return [make("p", {className: "headline"}, answer), highlight(context, [{start, end}]), bars([[answer, score]])];
}

function showChoice({choice, probabilities}, {choices}) {
  return [make("p", {className: "headline"}, choices[choice]),
    bars(choices.map((name, i) => [name, probabilities[i]]), choice)];
}

function showOutputs(row) {
  return Object.entries(row).map(([name, value]) => make(
    "p", {}, make("b", {}, name), make("code", {}, JSON.stringify(value).slice(0, 400))));
}

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
