// Package api serves the API of deploys: Connect, gRPC and JSON over HTTP.
//
// Callers present an access token of the state service. They see the rollouts of the agents in
// whose project they have at least the role reader; to others a rollout does not exist. Sinks,
// rebuilds and whose clusters are is for administrators. A watch follows changes within
// milliseconds, from every replica; one that falls behind skips what lies between, never the last.
package api
