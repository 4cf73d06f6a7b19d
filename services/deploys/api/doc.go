// Package api serves the API of deploys: Connect, gRPC and JSON over HTTP.
//
// A caller needs an access token of the state service. It can read the rollouts of a project in which it has at least
// the role reader. For other rollouts, the API returns not_found. Only administrators manage sinks, rebuilds and the
// owners of clusters. Every replica streams changes to the callers of WatchRollouts within milliseconds. A slow caller
// misses intermediate states of a rollout, never the last one.
package api
