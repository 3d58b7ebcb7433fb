/** Helpers that make elements and texts. */

export const $ = (id) => document.getElementById(id);
export const percent = (value) => `${(100 * value).toFixed(1)}%`;

/** An element; properties that are no property of it are CSS variables. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.style.setProperty(`--${name}`, value);
  }
  element.append(...children);
  return element;
}

/** A part of a text; offsets count code points, where JavaScript's own count UTF-16. */
export const slice = (text, start, end) => [...text].slice(start, end).join("");
