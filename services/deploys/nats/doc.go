// Package nats reads what watchers say of workloads (stream OBSERVED) and tells what follows from it (stream DEPLOYS).
//
// [Ingest] is the reader. Facts are published first, then the transaction commits states, facts, history and cursor. Once each is what the broker enforces: a fact is
// taken only if the last message about its workload is the one that the reader knows. A refusal is looked into, and then:
//
//   - the fact is there: after a crash between publishing and the commit, by a replica that was superseded, after a restore of the database. It counts as told.
//   - facts before it are not there: the stream was restored from an older copy. They are told again from the database, in their order.
//   - something else is there: the database knows less than the stream. What is not there is told after it, with the numbers that follow.
//
// Facts are a function of the stream alone: batches, crashes and replicas make no difference. Facts of one workload are in order, one in flight; those of
// different workloads are on their way at once. Facts of environments come after those of their members.
//
// Absence is judged by a full resync only when all its members came, and only as package rollout allows by the versions that were listed. What is absent after the
// watcher's selection changed is not known to be gone: it is merely no longer followed.
//
// [Mender] looks whether the stream still has what was told, after every start and every connection, and tells again what it lacks. [Rebuild] makes
// everything anew beside what is there, by the same code, compares, and puts it in place; it tells nothing.
//
// A cluster is the project's whose agent reported it first: what agents of other projects say of it goes to DEAD, as do messages that are malformed or
// not the agent's own. Whose it is was decided when the stream was read first; a rebuild goes by that. [Releaser] takes a cluster from its project: by a message of the stream, so that
// it takes effect at one place among what agents observe, for a rebuild too. An agent is waited for while the directory may not have told of it yet. While NATS or
// PostgreSQL is away the reader waits.
package nats
