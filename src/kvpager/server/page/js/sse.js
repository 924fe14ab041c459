// Server-sent events out of a fetch body. EventSource would hide the status of an answer (401 looks like a lost line).

/** Yields {event, data} for each event. Comments (pings) yield {event: "ping", data: ""}. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let searched = 0; // up to here `rest` has no end of an event: a large one comes in many chunks
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      for (;;) {
        const end = endOfEvent(rest, searched);
        if (end === null) break;
        yield parseEvent(rest.slice(0, end.at));
        rest = rest.slice(end.next);
        searched = 0;
      }
      searched = Math.max(0, rest.length - 3);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function endOfEvent(text, from) {
  const lf = text.indexOf("\n\n", from);
  const crlf = text.indexOf("\r\n\r\n", from);
  if (lf === -1 && crlf === -1) return null;
  if (crlf === -1 || (lf !== -1 && lf < crlf)) return { at: lf, next: lf + 2 };
  return { at: crlf, next: crlf + 4 };
}

function parseEvent(text) {
  let event = "message";
  const data = [];
  let isComment = true;
  for (const line of text.split(/\r?\n/)) {
    if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
    else if (line.startsWith("event:")) event = line.slice(6).trim();
    if (line && !line.startsWith(":")) isComment = false;
  }
  return isComment ? { event: "ping", data: "" } : { event, data: data.join("\n") };
}
