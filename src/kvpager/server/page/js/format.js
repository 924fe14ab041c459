// Numbers as people read them. Everything shown on the page goes through here.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const count = (value) => (isNumber(value) ? whole.format(value) : NONE);

export function rate(value) {
  if (!isNumber(value)) return NONE;
  return value !== 0 && value < 9.95 ? value.toFixed(1) : whole.format(value);
}

export function percent(share) {
  if (!isNumber(share)) return NONE;
  const value = share * 100;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${unit === 0 || value >= 99.5 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return `${value.toFixed(value < 10 ? 1 : 0)} s`;
}

export function duration(value) {
  if (!isNumber(value)) return NONE;
  if (value < 60) return `${value.toFixed(0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

/** Unix seconds as the time of day. */
export function clock(time, digits = 0) {
  const date = new Date(time * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const base = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return digits ? `${base}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}` : base;
}

/** "1 page", "2 pages". */
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

/** A long id, cut in the middle, where both ends tell requests apart. */
export const shortId = (id, length = 18) =>
  id.length <= length ? id : `${id.slice(0, Math.ceil(length / 2))}…${id.slice(-Math.floor(length / 2) + 1)}`;
