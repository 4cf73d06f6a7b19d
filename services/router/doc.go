// Package router is the service that sends requests of runners, jobs and users to the cell that owns them. It stores
// nothing: any number of replicas may run. [Main] builds the adapters and lists the parts.
//
// Before the cell map is loaded for the first time, the service is not ready. Then it continues with the last known map
// while NATS is unavailable, and reports it in /readyz.
//
// Its packages are:
//
//   - route: decides which cell gets a request
//   - forward: sends requests to their cells
package router
