// Package natsd runs a NATS server with JetStream inside this process.
//
// It promises: the server listens for clients on 127.0.0.1 only, on a port of its own unless told
// otherwise, and opens no other listener; with a configuration file it has that file's accounts,
// permissions, auth callout and limits, so that an embedded server and an external one behave
// alike; [Server.Restart] comes back with the same store on the same port; [Server.Snapshot] and
// [Server.Restore] put an older copy of the store in place, which is how an operator's restore
// looks to clients.
//
// Failure modes: Start returns an error when the configuration is refused, the port is taken or the
// store cannot be opened; the server never ends the process. A temporary store is removed by
// [Server.Stop].
package natsd
