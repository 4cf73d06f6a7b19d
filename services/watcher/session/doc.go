// Package session runs one leader session: the time in which this process is the leader and reports.
//
// A session runs one pipeline for each scope. Each starts with an empty queue:
//
//	kube.Watch → filter.Filter → delivery.Queue → report.Reporter → nats.Publisher
//
// Pipelines run their own full resyncs. They share the connection, the window of messages in flight and the limit
// on members.
//
// A full resync publishes a begin event, a member for each listed object, and an end event once all
// members are acknowledged. The pipeline publishes nothing else while it publishes the begin event. The
// pipeline of tracked workloads also pauses while it lists, and then waits until the watch has reported
// the listed versions.
//
// The pipeline of tracked workloads also lists the pods of rollouts that make no progress, one list at a time, and
// publishes a list that differs from the one before.
//
// Members of workspaces are published many in one message. A member of a message that failed is then published alone.
//
// Members are paced: they wait while the state service, which reports how far it has processed OBSERVED, is too
// far behind. Changes never wait for that.
package session
