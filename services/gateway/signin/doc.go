// Package signin signs people in at an OpenID Connect provider: authorization code flow with PKCE and nonce.
//
// People sign in at one host of the zone, and get a session there. Each host of a workspace has a session cookie of its
// own, which it gets by a ticket from the sign-in host:
//
//  1. A browser without a session navigates to a workspace. It gets a cookie with a random number and the path, and is
//     sent to /authorize of the sign-in host with the hash of the number.
//  2. The sign-in host sends it to the provider, unless it has a session there, and back to /callback.
//  3. The sign-in host sends it back to the workspace with a ticket. It is valid for a minute, for this host and this
//     number, so nobody can sign another person in with it.
//  4. The host of the workspace exchanges ticket and number for its session cookie.
//
// All values are encrypted ([session.Keys]) and bound to their host and purpose. Cookies are host-only, Secure,
// HttpOnly and SameSite=Lax; their prefix __Host- keeps pages of workspaces from setting them. A session ends by time,
// and at once when the person signs out: its id is revoked on all hosts.
package signin
