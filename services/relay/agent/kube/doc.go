// Package kube forwards requests on streams to the Kubernetes API server of the cluster.
//
// Every request impersonates a user that the relay names, who begins with "lockstep:", as do all groups ([Admit]). All
// other credentials are removed. The agent's own credentials permit nothing but to impersonate such users.
//
// Responses are streamed. Upgraded connections (exec, attach, port-forward) have separate ends of their directions. A
// caller that leaves cancels its request, also while the API server is blocked. An idle stream costs one goroutine and
// two small buffers.
//
// Errors of this package are a Status, as those of the API server: 403 if a request is refused, 502 and 503 if the API
// server does not respond.
package kube
