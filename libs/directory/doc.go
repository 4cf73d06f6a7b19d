// Package directory is a service's own copy of the stream DIRECTORY, in memory: who there is, who
// may do what where, which keys sign access tokens. With it a service authorizes by itself, without
// asking anybody, also while state is away.
//
// The copy is ready once it has caught up with the stream for the first time, and stays ready from
// then on: while NATS is away it answers with what it knew. Changes arrive within milliseconds
// otherwise, and [Directory.Changed] tells of them.
//
// It never goes back. Each message carries a revision that grows on its subject; of two the higher
// one counts, in whatever order they come. So a stream that was restored from an older copy takes
// nothing away, and state, which notices, tells everything again. A stream that was made anew is
// another matter: what it does not tell is forgotten, once it has been read to its end.
//
// The stream is read from its start after every change of the connection, since a restored server
// is one that was away, and when a look at the stream, every [Config.Probe], shows another one than
// was read. It is small: one message for each entry.
//
// What is unknown has no rights: a user, a scope or an agent that the stream has not told of, or
// has called deleted, and a user who is blocked.
package directory
