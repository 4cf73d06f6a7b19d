// Package forward sends requests to the cells that package route selects, and their responses back.
//
// Bodies are streamed in both directions. Only the start of a body is held in memory, at most [route.MaxBody] bytes,
// and only if no header has the token. A request has no time limit of its own, so that a request for a job may wait.
// Its body must progress, and its response must begin within [Config.ResponseTimeout].
//
// Each cell has connections, a limit of requests and a circuit breaker of its own, so that a cell that is down or hangs
// costs the requests of other cells nothing.
//
// A request with a body is sent once: GitLab runners try again. Go's client repeats one without a body, such as a GET,
// if an idle connection is lost when it is used again.
package forward
