// Package publish publishes facts on the stream DEPLOYS: each exactly once, and those of one workload in order.
//
// The stream accepts a fact only if the newest message about its workload is the expected one (compare-and-set). After
// a conflict, [Publisher] compares its [Queue] with the stream:
//
//   - The stream has the fact, after a crash before the commit or by another replica: it counts as published.
//   - The stream lacks earlier facts because it was restored: they are republished from the database, in order.
//   - The stream has other facts because the database was restored: the queued facts are renumbered and follow them.
//
// [Reconciler] finds and republishes what a restored stream lacks when nothing new happens.
//
// [Stream] and [Facts] are the ports to NATS and PostgreSQL. While either is away, calls fail and the caller retries.
package publish
