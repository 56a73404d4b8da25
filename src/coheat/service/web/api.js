// Talking to the service: one function per route, errors as sentences, the key where it is asked for.

import { t } from "./words.js";

const KEY = "coheat-api-key";

/** What went wrong, as a sentence for the person at the page; `status` is 0 when nobody answered. */
export class ServiceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let keyAsker = async () => false;

/** `asker(refused)` shows the prompt and promises whether a key was given. */
export function askForKeysWith(asker) {
  keyAsker = asker;
}

export function storedKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function storeKey(key) {
  if (key) {
    sessionStorage.setItem(KEY, key);
  } else {
    sessionStorage.removeItem(KEY);
  }
}

async function ask(method, path, parameters = {}, body = undefined) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) {
    url.searchParams.set(name, value);
  }
  const answer = await answerTo(method, url, body);
  if (answer.status === 204) {
    return null;
  }
  const content = await answer.json().catch(() => null);
  if (!answer.ok) {
    throw new ServiceError(sentenceOf(answer, content), answer.status);
  }
  return content;
}

async function answerTo(method, url, body) {
  for (;;) {
    const key = storedKey();
    const headers = { Accept: "application/json" };
    if (key) {
      headers["X-API-Key"] = key;
    }
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
    }
    let answer;
    try {
      answer = await fetch(url, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
      });
    } catch {
      throw new ServiceError(t("service.silent"), 0);
    }
    if (answer.status !== 401) {
      return answer;
    }
    // Another request may have brought a new key meanwhile; then this one just tries again.
    if (key === storedKey() && !(await keyAsker(key !== ""))) {
      throw new ServiceError(t("service.wantsKey"), 401);
    }
  }
}

/** The sentence in a problem+json answer; never the raw answer. */
function sentenceOf(answer, content) {
  const said = typeof content?.detail === "string" ? content.detail : content?.title;
  if (answer.status === 403) {
    return t("service.mayNot", { said: said ?? t("service.needWrite") });
  }
  if (answer.status === 429 || answer.status === 503) {
    return t("service.busy", { said: said ?? t("service.soon") });
  }
  if (said) {
    return sentence(said);
  }
  return t("service.error", { status: answer.status });
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

const id = encodeURIComponent;

export const findUsers = (query, limit) => ask("GET", "v1/users", { query, limit });
export const findItems = (query, limit) => ask("GET", "v1/items", { query, limit });
export const user = (userId) => ask("GET", `v1/users/${id(userId)}`);
export const bundle = (bundleId) => ask("GET", `v1/bundles/${id(bundleId)}`);
export const findBundles = (query, limit) => ask("GET", "v1/bundles", { query, limit });
export const recommendations = (userId, k, candidates) =>
  ask("GET", `v1/recommendations/${id(userId)}`, { k, candidates });
export const filtered = (userId, k, candidates, where) =>
  ask("POST", "v1/recommendations", {}, { user_id: userId, k, candidates, where });
export const audience = (bundleId, k) => ask("GET", `v1/bundles/${id(bundleId)}/audience`, { k });
export const similar = (bundleId, k) => ask("GET", `v1/bundles/${id(bundleId)}/similar`, { k });
export const standing = (bundleId) => ask("GET", `v1/bundles/${id(bundleId)}/standing`);
export const descriptions = (bundleIds, itemIds) =>
  ask("POST", "v1/descriptions", {}, { bundle_ids: bundleIds, item_ids: itemIds });
export const catalogue = () => ask("GET", "v1/catalogue");
export const turned = (name, value) => ask("GET", `v1/knobs/${id(name)}`, { value });
export const turn = (name, value) => ask("PATCH", `v1/knobs/${id(name)}`, {}, { value });
export const parts = () => ask("GET", "v1/parts");
export const happened = () => ask("GET", "v1/happened");
/** Whether lists can be filtered: what the service says of itself. */
export const canFilter = async () => "where" in ((await ask("GET", "openapi.json")).components.schemas.Question?.properties ?? {});
export const explanation = (userId, bundleId) =>
  ask("GET", "v1/explanations", { user_id: userId, bundle_id: bundleId });
export const preview = (itemIds, k) => ask("POST", "v1/previews", {}, { item_ids: itemIds, k });
export const publish = (bundleId, itemIds) =>
  ask("POST", "v1/bundles", {}, { bundle_id: bundleId, item_ids: itemIds });
export const withdraw = (bundleId) => ask("DELETE", `v1/bundles/${id(bundleId)}`);
export const record = (userId, bundleId) =>
  ask("POST", "v1/interactions", {}, { user_id: userId, bundle_id: bundleId });
export const takeBack = (userId, bundleId) =>
  ask("DELETE", "v1/interactions", { user_id: userId, bundle_id: bundleId, kind: "took" });
export const statistics = () => ask("GET", "v1/statistics");
export const models = () => ask("GET", "v1/models");
