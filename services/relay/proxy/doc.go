// Package proxy carries callers' requests to agents: the Kubernetes API of their clusters, and HTTP and TCP to targets there.
//
// A [Handler] knows the caller ([Authenticator]), reads where the request goes, and asks the directory whether it may. What is let in is on record, also when it is refused; it is
// given up when its caller may not do it any more. Requests to the Kubernetes API say as whom they are made, and nothing that a caller sends can say otherwise. A caller's token for
// the relay goes nowhere.
//
// A [Transport] sends requests over streams, one after the other over each. It keeps a stream only when request and answer are both over and nothing is left of them, so that no
// answer meets another request; heads of answers are bounded. What an agent has not taken is tried elsewhere; what it may have had is sent again only where it just reads.
//
// Faults are of the caller (invalid_argument, unauthenticated, permission_denied, not_found, resource_exhausted) or say unavailable: no agent came in time, it was lost, its target
// gives no answer. Whether a request that was sent had an effect is then not known.
package proxy
