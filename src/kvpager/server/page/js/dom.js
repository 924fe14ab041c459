// The little of a framework that the page needs. Text only ever enters the page as text, never as markup.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes only what differs: an unchanged text costs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setClass(node, name, isOn) {
  if (node.classList.contains(name) !== isOn) node.classList.toggle(name, isOn);
}

/** Rows that are kept and rewritten rather than made anew. `make()` gives a row, `write(row, item)` fills it. */
export function syncRows(parent, items, make, write) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, index) => write(parent.children[index], item));
}

/** A property of the theme, as written in the style sheet. */
const computed = getComputedStyle(document.documentElement);
export const themeValue = (name) => computed.getPropertyValue(name).trim();

/** The canvas' size in device pixels follows its size on the page. Returns {context, width, height, ratio}. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${w / ratio}px`;
    canvas.style.height = `${h / ratio}px`;
  }
  return { context: canvas.getContext("2d"), width: w, height: h, ratio };
}

/** Calls back with a new width, in the next frame: what is drawn then may change sizes without a loop. */
export function watchWidth(node, callback) {
  let width = node.clientWidth;
  new ResizeObserver(() =>
    requestAnimationFrame(() => {
      if (node.clientWidth === width) return;
      width = node.clientWidth;
      callback(width);
    }),
  ).observe(node);
}

/** Calls back with whether the element is on the screen (and the page in front). */
export function watchVisible(node, callback) {
  let isInView = false;
  const tell = () => callback(isInView && document.visibilityState === "visible");
  new IntersectionObserver((entries) => {
    isInView = entries[entries.length - 1].isIntersecting;
    tell();
  }).observe(node);
  document.addEventListener("visibilitychange", tell);
}
