// Package natsd runs a NATS server with JetStream inside this process.
//
// The server listens for clients on 127.0.0.1 only, on a free port unless Options.Port is set. It opens no other
// listener. With a configuration file it uses the accounts, permissions, auth callout and limits of that file, like an
// external server. [Server.Restart] keeps the store and the port. [Server.Snapshot] and [Server.Restore] replace the
// store with an older copy, like a restore by an operator.
//
// Failure modes: Start returns an error when the configuration is refused, the port is taken or the
// store cannot be opened; the server never ends the process. A temporary store is removed by
// [Server.Stop].
package natsd
