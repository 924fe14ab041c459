// The alerts that stand, as a list and as a badge beside the title.

import { element, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

export class Alerts {
  constructor({ list, empty, badge }) {
    Object.assign(this, { list, empty, badge });
  }

  show({ meta }) {
    const alerts = [...(meta.alerts ?? [])].sort((a, b) => (a.severity === "critical" ? 0 : 1) - (b.severity === "critical" ? 0 : 1));
    this.empty.hidden = alerts.length > 0;
    this.badge.hidden = alerts.length === 0;
    setText(this.badge, format.many(alerts.length, "alert"));
    this.badge.dataset.severity = alerts[0]?.severity ?? "";
    syncRows(this.list, alerts, row, (node, alert) => {
      const [name, summary, since] = node.children;
      node.dataset.severity = alert.severity;
      setText(name, words(alert.name));
      setText(summary, alert.summary ?? "");
      setText(since, alert.since ? `${alert.severity}, since ${format.clock(alert.since)}` : alert.severity);
    });
  }
}

/** "KvpagerMemoryNearLimit" and "memory_near_limit" as words. */
function words(name) {
  const text = name.replace(/^kvpager_?/i, "").replace(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const row = () => element("li", {}, element("strong"), element("p"), element("time"));
