// Package agents keeps what the service knows of each agent: its cluster, its clock and its full resyncs.
//
// It decides which cluster an agent is in, whether a full resync is complete, what is absent after it, when the
// resource versions of a cluster start again, and which agents another agent may act for.
//
// The package is pure: equal observations in equal order give equal decisions. The service, a rebuild and a replay
// therefore agree. A [Registry] separates changes from the stored agents until [Registry.Commit].
package agents
