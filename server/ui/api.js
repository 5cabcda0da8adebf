// Requests to this server. The key stays in this tab's session storage, and goes nowhere but into the header.

const KEY = "halyard-key";
const listeners = new Set();

/** Where the server's own routes begin: the page is one level below. */
const ROOT = new URL("../", document.baseURI);

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  isSet: () => sessionStorage.getItem(KEY) !== null,
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Calls `listener` when the server wants a key, or another one. */
export function onKeyWanted(listener) {
  listeners.add(listener);
}

async function send(path, { body, signal } = {}) {
  const headers = {};
  const secret = sessionStorage.getItem(KEY);
  if (secret) headers.authorization = `Bearer ${secret}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(new URL(path, ROOT), {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal,
    credentials: "same-origin",
    cache: "no-store",
  });
  if (response.ok) return response;
  const text = await response.text();
  let message = text.slice(0, 1000) || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // The answer is not this server's: a proxy's, as it stands.
  }
  // A late answer to an old key says nothing of the one that is set now.
  const isCurrent = secret === sessionStorage.getItem(KEY);
  if (response.status === 401 && isCurrent) listeners.forEach((listener) => listener(message));
  throw new Failure(response.status, message);
}

/** The JSON that a route answers. */
export async function ask(path, options) {
  return (await send(path, options)).json();
}

/** How long events of a stream are handed out before the browser may hear keys and draw. */
const TURN_MS = 10;

/** The events of a stream, each parsed; ends with the stream. A server that is faster than the page holds up no key. */
export async function* stream(path, options) {
  const response = await send(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let turn = performance.now();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Failure(event.error.code ?? 500, event.error.message);
      yield event;
      if (performance.now() - turn < TURN_MS) continue;
      await new Promise((resolve) => { setTimeout(resolve); });
      turn = performance.now();
    }
  }
}
