// Package audit records which caller sent which request to which agent, and the result. It never records bodies.
//
// A request has one record when it ends. A long-running one has another record when it begins. Records are
// published in batches, at least once, each with a stable id. A request reserves capacity for its records
// before it is forwarded. While NATS is unavailable, records are kept; without capacity, requests wait. While NATS
// is available, a killed relay loses at most the records of the last second. During an outage it loses all
// unpublished ones.
//
// A caller has a budget of records, so that nobody can fill the stream and so evict the records of others, or its own
// earlier ones. Above it, requests of one kind are summed up in one record per minute. Changes of a cluster are never
// summed up: they are refused.
package audit
