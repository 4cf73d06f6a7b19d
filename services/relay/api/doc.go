// Package api serves the relay's API over Connect, gRPC and JSON: which agents are connected where, and the pods of an
// agent's cluster.
//
// Every relay answers for all relays, from its registry. A caller sees the agents that it may reach; others do not
// exist for it.
package api
