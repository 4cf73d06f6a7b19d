// Package pg starts a private PostgreSQL server from the binaries installed on this machine.
//
// The server is at least PostgreSQL 15. It listens on 127.0.0.1 (password) and on a unix socket that only its OS user
// can reach. It has a port of its own, so that several servers run side by side. If this process is root, the server
// runs as an unprivileged OS user. [Server.Stop] removes everything of a temporary server. The next Start can open a
// kept data folder again.
//
// A temporary server (no [Options.Data]) runs with fsync off. Committed data survives Server.Kill, but not a
// power loss. A kept one has PostgreSQL's own durable settings.
//
// Failure modes: no binaries → [ErrNotInstalled], whose text says how to install or point to a server; a data
// folder in use by another process → [ErrInUse]; a data folder of another major version → an error that names
// both versions. When this process dies without Stop, the server gets SIGINT at once (Linux); elsewhere the
// next Start on this machine stops servers whose parent is gone and removes their temporary folders.
package pg
