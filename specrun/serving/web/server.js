// Asks the server that this page is from.

/** The model's name. Throws Refused. */
export async function modelName(key) {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) throw await refused(response);
  return (await response.json()).data[0].id;
}

/** The events of a streamed answer. body: of the request. Throws Refused. */
export async function* answer(body, key, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers(key) },
    body: JSON.stringify({ ...body, stream: true, last_tree: true }),
    signal,
  });
  if (!response.ok) throw await refused(response);
  for await (const event of events(response.body)) {
    if (event.error) throw new Refused(event.error.message);
    yield event;
  }
}

/** An error that the server told. status: of HTTP. */
export class Refused extends Error {
  constructor(message, status = 200) {
    super(message);
    this.status = status;
  }
}

const headers = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function refused(response) {
  try {
    return new Refused((await response.json()).error.message, response.status);
  } catch {
    return new Refused(`the server answered ${response.status}`, response.status);
  }
}

async function* events(body) {
  let held = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
