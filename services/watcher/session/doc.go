// Package session runs one leader session: the time in which this process is the leader and reports.
//
// A session starts without knowledge and runs one pipeline for each scope:
//
//	kube.Watch → filter.Filter → delivery.Queue → report.Reporter → nats.Publisher
//
// Pipelines run their own full resyncs and do not wait for each other. They share the connection,
// the window of messages in flight and the tick.
//
// A full resync publishes a begin, a member for each listed object, and an end once all members are
// acknowledged. From before the first list until the begin is stored, its pipeline publishes
// nothing else. Where every version counts, it waits for the watch to report the listed versions
// first.
package session
