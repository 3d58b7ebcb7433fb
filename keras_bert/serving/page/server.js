/** The server's REST interface. */

import {$} from "./elements.js";

let token = "";

/** Asks; returns the answer and the server's own times. Without a body it is GET. */
export async function call(path, body) {
  const bytes = new TextEncoder().encode(`Bearer ${token}`); // a header holds bytes, each as one character
  const headers = token ? {Authorization: String.fromCharCode(...bytes)} : {};
  const response = await fetch(path, {headers, ...(body && {method: "POST", body: JSON.stringify(body)})});
  if (response.status === 401) {
    await askToken();
    return call(path, body);
  }
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), {status: response.status});
  return [answer, response.headers.get("Server-Timing")];
}

/** The command that asks the same; it reads the server's token from a variable. */
export function asCurl(path, body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const header = token ? ' -H "Authorization: Bearer $TOKEN"' : "";
  return `curl${header} ${new URL(path, location)} -d '${quoted}'`;
}

function askToken() {
  $("token-message").textContent = token && "The server rejected this token.";
  $("token").value = "";
  $("token-dialog").returnValue = "";
  $("token-dialog").showModal();
  return new Promise((resolve, reject) => {
    $("token-dialog").onclose = () => {
      token = $("token").value;
      token ? resolve() : reject(new Error("The server requires a token. Reload the page to enter it."));
    };
  });
}
