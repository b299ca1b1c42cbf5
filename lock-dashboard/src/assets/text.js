// Texts for people, and the nodes that have them. Texts such as keys come from other processes and may be hostile, so they
// are only ever put into text nodes and attributes that have no meaning as code.

export const byId = (id) => document.getElementById(id);

export function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/** A text with its invisible characters made visible: they could hide or reorder parts of it. */
export function visible(text) {
  const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return text.replace(hidden, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

export function number(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 10000) return value.toLocaleString('en', { maximumFractionDigits: 0 });
  return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
}

export function count(value, one, many) {
  return `${number(value)} ${value === 1 ? one : many}`;
}

/** A duration in ms, to about two digits. */
export function span(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1) return ms === 0 ? '0 s' : `${Math.max(1, Math.round(ms * 1000))} µs`;
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  return long(ms);
}

/** A duration that changes every second. */
export function long(ms) {
  const seconds = Math.floor(ms / 1000);
  const two = (value) => String(value).padStart(2, '0');
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h ${two(Math.floor(seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86400)}d ${Math.floor(seconds / 3600) % 24}h`;
}

/** The last rest of a lease, to a tenth of a second. */
export function left(ms) {
  return ms < 10000 ? `${(Math.max(0, ms) / 1000).toFixed(1)} s` : long(ms);
}

export function percent(part) {
  return part === null ? '–' : `${(part * 100).toFixed(part > 0 && part < 0.0995 ? 1 : 0)} %`;
}
