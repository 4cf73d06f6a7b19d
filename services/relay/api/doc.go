// Package api serves the relay's API over Connect, gRPC and JSON: which agents are connected where, and the pods of an
// agent's cluster.
//
// Every relay can answer for all relays, from its registry. A caller sees only agents that it may access.
package api
