// Package agent is the relay agent: it runs in a cluster that nobody can connect to, dials relays, and joins the streams that they open with targets in the cluster.
//
// It promises to be reachable through every relay that it is configured with, for as long as one answers: a connection that is lost, old, or left by its relay is replaced, where possible
// before it is gone ([link]). What can be reached is decided twice, by the agent's configuration at the control plane and by the agent's own settings ([targets]); requests to the
// Kubernetes API are made in the name of whom the relay names, and of nobody else ([kube]).
//
// Streams are independent: one that is slow, or whose target has stopped reading, holds up no other and costs one window of memory. With a stream that is given up, or whose connection
// is lost, the connection to its target ends. There are never more streams than max_streams; further ones are refused as not taken, so that relays try elsewhere.
//
// Told to stop, it takes no more streams, finishes those that are open within drain_timeout, and cuts the rest. It is ready while it has a connection with a relay; an API server or a
// target that does not answer is said, and no reason to be not ready. The last configuration is kept while no relay can be reached, not over a restart.
package agent
