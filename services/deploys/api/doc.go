// Package api serves the API of deploys: Connect, gRPC and JSON over HTTP.
//
// A caller needs an access token of the state service. It sees the rollouts of agents of projects
// where it has at least the role reader; other rollouts do not exist for it. Sinks, rebuilds and
// the owners of clusters are for administrators. Every replica streams changes to watchers within
// milliseconds. A slow watcher skips intermediate states, never the last.
package api
