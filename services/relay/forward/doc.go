// Package forward carries callers' requests to agents: the Kubernetes API of their clusters, and HTTP and TCP targets.
//
// Every Kubernetes and HTTP request of a caller takes one path: net/http's server, [Handler], httputil.ReverseProxy,
// [Transport], a stream to the agent. For TCP, the Handler joins the caller's connection with a stream directly,
// without ReverseProxy and Transport. [Handler.Get] uses the Transport directly.
//
// A [Handler] authenticates the caller, parses the path and authorizes the request. It audits the requests of
// known callers to existing agents, also those that policy denies. It does not audit malformed requests, or those
// above a limit. It cancels a request when its caller loses access. The relay alone sets impersonation; it refuses
// impersonation headers from callers. It never forwards the caller's token.
//
// A [Transport] sends requests over pooled streams, one at a time on each. It pools a stream only after request
// and response are complete, so that no response reaches another request.
//
// # Retries
//
// Only the relay that received a request from a caller retries it, in three places:
//
//   - [connections.Pool.Open] tries one connection after the other until a stream is open. Nothing was sent, so
//     every request may do so. When no connection is left it waits for a new one or for the next round, up to
//     the agent timeout. It does not wait for an overloaded agent: the request fails with resource_exhausted.
//   - TCP, and a request that may not be repeated, open another stream if one failed before the agent accepted it.
//     The caller's bytes are sent after that. Only requests that may be repeated use pooled streams.
//   - [Transport] retries a request without a body if its stream failed before the response.
//
// A replica that does not respond is left for another one by the same rules; see [connections.Pool.AwaitAnswer].
//
// The last two use one table, [route.AfterFailure]. All other parts only report a failure: the tunnel, the relay
// with the tunnel, the agent. An agent that reconnects (package agent/link) retries no request.
//
// # Faults
//
// The faults are invalid_argument, unauthenticated, permission_denied, not_found, failed_precondition (the agent is
// revoked), canceled, resource_exhausted, or unavailable: this relay is not ready or drains, its audit log is full, no
// agent connected in time, its connection was lost, or its target did not respond. After unavailable, a request that
// was sent may have had an effect.
package forward
