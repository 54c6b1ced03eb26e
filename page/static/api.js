// Questions to the service that the page comes from.

export class ApiError extends Error {}

// Without the key that may stand in the page's own address: browsers fetch no address that has one.
export const at = (path) => Object.assign(new URL(path, location.href), { username: "", password: "" });

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(at(path), { cache: "no-store", ...options,
      headers: { accept: "application/json", ...options.headers } });
  } catch (error) {
    throw new ApiError(`No answer to ${path.split("?")[0]}`);
  }
  const text = await answer.text();
  if (!answer.ok) throw new ApiError(`/${path.split("?")[0]}: ${answer.status} ${said(text)}`);
  return { text, headers: answer.headers };
}

export const get = async (path) => JSON.parse((await ask(path)).text);

// Hashes are u64: as numbers they would lose their last digits, so they are kept as text.
export async function post(path, body) {
  const { text, headers } = await ask(path, { method: "POST", body, headers: { "content-type": "application/json" } });
  return { document: JSON.parse(text), headers };
}

function said(text) {
  try {
    const told = JSON.parse(text);
    return told.error ?? told.detail ?? text.slice(0, 200);
  } catch {
    return text.slice(0, 200);
  }
}

// Samples of the text format, of the families that are wanted: [name, labels, value].
export function samples(text, wanted) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (match && wanted.has(match[1])) found.push([match[1], match[2] ?? "", Number(match[3])]);
  }
  return found;
}
