// Package agents keeps the state of each agent: its cluster, its clock and its full resyncs.
//
// It decides which cluster an agent is in, whether a full resync is complete, and which workloads are absent after it.
// It detects that a cluster was restored from a backup, so that its resource versions restart at a lower value. It
// decides which agents an agent may act for.
//
// The package is pure: equal observations in equal order give equal decisions. The service, a rebuild and a replay
// therefore agree. A [Registry] separates changes from the stored agents until [Registry.Commit].
package agents
