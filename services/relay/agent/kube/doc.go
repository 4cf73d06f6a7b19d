// Package kube forwards requests on streams to the Kubernetes API server of the cluster.
//
// Every request impersonates the user and groups that the relay sets. Their names begin with "lockstep:"
// ([ParseIdentity]). All other credentials are removed. RBAC has no name patterns: the agent's own credentials
// permit it to impersonate any user, but only the groups of the relay. The agent itself refuses users without the
// prefix.
//
// Responses are streamed. Upgraded connections (exec, attach, port-forward) support half-close. When a caller
// disconnects, its request is cancelled, also while the API server is blocked. An idle stream costs one goroutine and
// two small buffers.
//
// Errors of this package are a Status, as those of the API server: 403 if the impersonation is not
// allowed, 400 if the path is invalid, 502 and 503 if the API server does not respond.
package kube
