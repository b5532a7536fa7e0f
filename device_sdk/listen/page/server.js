// Requests to this page's own server, in the name of whoever speaks.
const KEY = "idiolect.person";
let own = { name: localStorage.getItem(KEY) ?? "", token: "" };

export const person = () => own;

export function setPerson(name, token) {
  own = { name, token };
  localStorage.setItem(KEY, name);
}

export const ask = (method, path, body) =>
  send(method, path, body === undefined ? undefined : JSON.stringify(body), "application/json");

export async function send(method, path, body, kind = "application/octet-stream") {
  const headers = { "content-type": kind };
  if (own.name) headers["x-idiolect-person"] = own.name;
  if (own.token) headers.authorization = `Bearer ${own.token}`;
  const answer = await fetch(path, { method, headers, body });
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error?.message ?? answer.statusText), { status: answer.status });
  return found;
}

export function socketUrl(rate) {
  const query = new URLSearchParams({ rate: String(rate) });
  if (own.name) query.set("person", own.name);
  if (own.token) query.set("token", own.token);
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/listen?${query}`;
}
