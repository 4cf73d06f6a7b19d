// Package kube forwards requests on streams to the Kubernetes API server of the cluster.
//
// Every request impersonates a user that the relay names, who begins with "lockstep:", as do all groups
// ([ParseIdentity]). All other credentials are removed. The agent's own credentials only permit impersonation of such
// users.
//
// Responses are streamed. Upgraded connections (exec, attach, port-forward) support half-close. When a caller
// disconnects, its request is cancelled, also while the API server is blocked. An idle stream costs one goroutine and
// two small buffers.
//
// Errors of this package are a Status, as those of the API server: 403 if a request is refused, 502 and 503 if the API
// server does not respond.
package kube
