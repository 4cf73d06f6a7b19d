// Package forward carries callers' requests to agents: the Kubernetes API of their clusters, and HTTP and TCP targets.
//
// Every request takes one path: net/http's server, [Handler], httputil.ReverseProxy, [Transport], a stream to
// the agent. A TCP request leaves it after the Handler: its connection is joined with a stream.
//
// A [Handler] authenticates the caller, parses the address and authorizes the request. It audits every request
// of a known caller, also a refused one. It cancels a request when its caller loses access. The relay alone sets
// impersonation; it refuses such headers of callers. It never forwards the caller's token.
//
// A [Transport] sends requests over pooled streams, one at a time on each. It pools a stream only after request
// and response are complete, so that no response reaches another request. It retries what no agent accepted, and
// requests that only read.
//
// Faults are invalid_argument, unauthenticated, permission_denied, not_found, resource_exhausted, or unavailable:
// no agent connected in time, its connection was lost, or its target did not respond. After unavailable, a
// request that was sent may have had an effect.
package forward
