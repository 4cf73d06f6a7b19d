// Package publish publishes facts on the stream DEPLOYS. Each fact is published exactly once. Facts of one workload are
// published in order.
//
// The stream stores a fact only if the newest message about its workload is the expected one (compare-and-set). After a
// conflict, [Publisher] compares its [Queue] with the stream:
//
//   - The stream has the fact already, because of a crash before the commit or another replica: it is skipped.
//   - The stream lacks earlier facts because it was restored: they are republished from the database, in order.
//   - The stream has other facts because the database was restored: the queued facts are renumbered and follow them.
//
// [Reconciler] finds and republishes the facts that a restored stream lacks, also if no new fact follows.
//
// [Stream] and [Facts] are the ports to NATS and PostgreSQL. While either is unavailable, calls fail and the caller
// retries.
package publish
