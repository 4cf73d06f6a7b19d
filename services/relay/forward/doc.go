// Package forward carries callers' requests to agents: the Kubernetes API of their clusters, and HTTP and TCP targets.
//
// Every request takes one path: net/http's server, [Handler], httputil.ReverseProxy, [Transport], a stream to
// the agent. For TCP, the Handler joins the caller's connection with a stream directly, without ReverseProxy
// and Transport.
//
// A [Handler] authenticates the caller, parses the path and authorizes the request. It audits every request of a
// known caller to an existing agent, also a refused one. It cancels a request when its caller loses access. The
// relay alone sets impersonation; it refuses impersonation headers from callers. It never forwards the caller's token.
//
// A [Transport] sends requests over pooled streams, one at a time on each. It pools a stream only after request
// and response are complete, so that no response reaches another request.
//
// # Retries
//
// Only the relay that received a request from a caller retries it, in three places:
//
//   - [connections.Pool.Open] tries one connection after the other until a stream is open. Nothing was sent, so
//     every request may do so. When no connection is left it waits for a new one, and for the next round, up to
//     the agent timeout. It does not wait for an overloaded agent: the request fails with resource_exhausted.
//   - [Transport] retries a request if its stream failed before the response.
//   - TCP retries the opening of a stream until the agent has accepted it. The caller's bytes are sent after that.
//
// The last two use one table, [route.AfterFailure]. All other parts only report a failure: the tunnel, the relay
// with the tunnel, the agent. An agent that reconnects (package agent/link) retries no request.
//
// # Faults
//
// The faults are invalid_argument, unauthenticated, permission_denied, not_found, resource_exhausted, or unavailable:
// no agent connected in time, its connection was lost, or its target did not respond. After unavailable, a
// request that was sent may have had an effect.
package forward
