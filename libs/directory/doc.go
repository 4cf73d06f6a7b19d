// Package directory keeps a service's own copy of the stream DIRECTORY in memory: users, roles,
// agents, and the keys that sign access tokens. With it a service authorizes requests without
// calling another one, also while state is down.
//
// The copy is ready once it has read the stream to its end, and stays ready. While NATS is down it returns the last
// known data. Otherwise changes arrive within milliseconds; [Directory.Changed] reports them. A change that is stored
// while a NATS server fails may take up to [Config.Probe].
//
// Older data never replaces newer data: each message has a revision that increases per subject, and the higher
// revision wins in any order. So a stream that was restored from an older copy removes nothing. A recreated stream
// replaces the copy once it has been read to its end.
//
// Package lastvalue reads the stream, without a consumer. It reads from the beginning after every reconnect, and when a
// check, once per [Config.Probe], finds a different stream. The stream is small: one message per entry.
//
// Unknown and deleted users, scopes and agents have no rights, and neither have blocked users.
package directory
