// Package session runs one leader session: the time in which this process is the leader and reports.
//
// A session starts with an empty queue and runs one pipeline for each scope:
//
//	kube.Watch → filter.Filter → delivery.Queue → report.Reporter → nats.Publisher
//
// Pipelines run their own full resyncs and do not wait for each other. They share the connection,
// the window of messages in flight and the tick.
//
// A full resync publishes a begin event, a member for each listed object, and an end event once all
// members are acknowledged. The pipeline publishes nothing else while it publishes the begin event. The
// pipeline of tracked workloads also pauses while it lists, and then waits until the watch has reported
// the listed versions.
//
// Members are paced: they wait while the state service, which reports how far it has read, has too many
// messages to read. Changes never wait for that.
package session
