// The authorization-code flow of OpenID Connect with PKCE. State, nonce and verifier stay in the tab that began the
// sign-in, and are used once.

import { Refused, send } from "./api.js";

const STORED = "tickfleet-sign-in";
const SECRET_BYTES = 32;

const base64url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const secret = () => base64url(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));

/** Returns the identity provider of this gateway; `null` if the gateway accepts only keys and tokens. */
export const provider = async () => (await send("sign-in")).sign_in ?? null;

/** Returns true if the provider returns browsers to a console address other than the address of this page. */
export const isElsewhere = ({ redirect_uri }) => redirect_uri !== `${location.origin}${location.pathname}`;

/** Sends the browser to the provider. */
export async function beginSignIn({ issuer, authorization_endpoint, client_id, scope, redirect_uri }) {
  // Browsers offer `crypto.subtle` only to secure pages.
  if (!globalThis.crypto?.subtle) throw new Refused(0, "Sign-in needs HTTPS. Open the console at its HTTPS address.");
  const [state, nonce, verifier] = [secret(), secret(), secret()];
  const code_challenge = base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  sessionStorage.setItem(STORED, JSON.stringify({ state, nonce, verifier, redirect_uri, issuer, view: location.hash }));
  const url = new URL(authorization_endpoint);
  const query = { response_type: "code", client_id, redirect_uri, scope, state, nonce, code_challenge, code_challenge_method: "S256" };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  location.assign(url);
}

/** Returns the sign-in that this tab began, and removes it from the storage of the tab. */
function takeBegun() {
  const text = sessionStorage.getItem(STORED);
  sessionStorage.removeItem(STORED);
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/**
 * Returns the response of the provider in the address of this page, and removes it from the address. Returns
 * `undefined` if the address has no response. `begun` is missing if this tab did not begin the sign-in.
 */
export function takeResponse() {
  const query = new URLSearchParams(location.search);
  if (!["code", "error", "state"].some((name) => query.has(name))) return undefined;
  const begun = takeBegun();
  const isOwn = begun !== null && query.get("state") === begun.state;
  history.replaceState(null, "", `${location.pathname}${isOwn ? begun.view : location.hash}`);
  return { begun: isOwn ? begun : undefined, code: query.get("code"), error: query.get("error"), description: query.get("error_description"), issuer: query.get("iss") };
}

function messageOf(error, description) {
  const said = description ? `: ${description}` : "";
  if (error === "access_denied") return `The identity provider denied the sign-in${said}. Sign in again as another user, or ask the provider's administrator for access.`;
  if (error === "temporarily_unavailable" || error === "server_error") return `The identity provider is not available${said}. Sign in again in a minute.`;
  return `The identity provider rejected the sign-in with ${error}${said}. Ask the operator of this fleet to check the client's settings at the provider.`;
}

/** Completes a sign-in. Returns the token, or throws the reason with what to do. */
export async function completeSignIn({ begun, code, error, description, issuer }) {
  if (!begun) throw new Refused(0, "This sign-in did not begin in this tab, or was already used. Sign in again.");
  if (issuer !== null && issuer !== begun.issuer) throw new Refused(0, "This response is from another identity provider. Sign in again.");
  if (error) throw new Refused(0, messageOf(error, description));
  if (!code) throw new Refused(0, "The identity provider returned no code. Sign in again.");
  const { verifier, nonce, redirect_uri } = begun;
  try {
    return (await send("sign-in", { method: "POST", body: { code, verifier, nonce, redirect_uri } })).token;
  } catch (refused) {
    if (refused.status === 0) throw new Refused(0, "The gateway does not respond. Sign in again.");
    if (refused.status === 403) throw new Refused(403, `You are signed in at the identity provider, but this fleet rejects you: ${refused.message}. Ask the operator of this fleet for access.`);
    throw refused;
  }
}
