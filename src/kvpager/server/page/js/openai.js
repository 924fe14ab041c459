// The few calls of the OpenAI interface that the chat box makes. Keeps no key: the browser sends what it has.

import { ask } from "./ask.js";
import { readEvents } from "./sse.js";

async function fault(answer) {
  const retry = answer.headers.get("retry-after");
  let message = `the server answered ${answer.status}`;
  try {
    message = (await answer.json()).error?.message ?? message;
  } catch {
    // not JSON: the status has to do
  }
  const error = new Error(retry ? `${message} (again in ${retry} s)` : message);
  error.status = answer.status;
  return error;
}

async function post(path, body, signal, headers = {}) {
  const answer = await ask(path, {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw await fault(answer);
  return answer;
}

/** {name, limit}: the model and how many tokens a request may have. */
export async function readModel() {
  const answer = await ask("/v1/models");
  if (!answer.ok) throw await fault(answer);
  const model = (await answer.json()).data[0];
  return { name: model.id, limit: model.max_model_len ?? 2048 };
}

/** How many characters a token has in a text; a careful guess where the server can't say. */
export async function charactersPerToken(model, text) {
  try {
    const counted = await (await post("/tokenize", { model: model.name, prompt: text })).json();
    return text.length / Math.max(1, counted.count ?? counted.tokens.length);
  } catch {
    return 1.5;
  }
}

/** Streams one answer. `onText(piece)`; returns the usage, or null where the server sent none. */
export async function complete({ model, messages, maxTokens, session, signal, onText }) {
  const common = {
    model: model.name,
    max_tokens: maxTokens,
    temperature: 0.7,
    stream: true,
    stream_options: { include_usage: true },
  };
  const headers = { "x-session-id": session };
  let answer;
  if (!model.hasNoTemplate) {
    try {
      answer = await post("/v1/chat/completions", { ...common, messages }, signal, headers);
    } catch (error) {
      if (!isAboutTemplate(error)) throw error;
      model.hasNoTemplate = true;
    }
  }
  if (model.hasNoTemplate) {
    const prompt = messages.map((message) => message.content).join("\n\n");
    answer = await post("/v1/completions", { ...common, prompt }, signal, headers);
  }
  return readAnswer(answer, onText);
}

const isAboutTemplate = (error) => error.status === 404 || (error.status === 400 && /no chat template/i.test(error.message));

async function readAnswer(answer, onText) {
  let usage = null;
  for await (const { event, data } of readEvents(answer.body)) {
    if (event === "ping" || data === "") continue;
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices ?? []) {
      const text = choice.delta?.content ?? choice.text ?? "";
      if (text) onText(text);
    }
  }
  return usage;
}
