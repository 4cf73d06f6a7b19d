// Package kube answers requests to the Kubernetes API that come through streams, by asking the API server of the cluster.
//
// It promises that no request reaches the API server but in the name of somebody whom the relay has named, a user and groups that begin with "lockstep:" ([Admit]). Whatever else a request
// brings to say who it is does not pass. The agent shows its own credentials, which permit nothing but to act as such users.
//
// Answers flow as they come; what is upgraded (exec, attach, port-forward) goes on as two directions that end separately. A caller that leaves, or whose connection is lost, ends its
// request at the API server, even when that neither takes nor sends anything. A stream that waits for its next request costs one goroutine and two small buffers.
//
// What this package answers itself is a Status, as the API server's own answers are: 403 for what is not admitted, 502 and 503 for an API server that does not answer.
package kube
