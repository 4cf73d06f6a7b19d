// Package audit records who did what at which agent, and the result; never what was sent.
//
// A request has one record when it ends. A long-running one has another record when it begins. Records are published
// in batches, at least once, each with a stable id. A request is admitted only if there is room for its records, so
// none is lost while NATS is away; without room, requests wait. A relay that is killed loses at most the last
// second's records.
package audit
