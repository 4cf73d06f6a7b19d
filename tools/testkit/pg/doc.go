// Package pg starts a private PostgreSQL server from the binaries installed on this machine.
//
// It promises: the server listens on 127.0.0.1 (password) and on a unix socket that only its OS
// user can reach, on a port of its own, so that any number of servers run side by side; it runs as
// an unprivileged OS user when this process is root; it is at least PostgreSQL 15; [Server.Stop]
// leaves nothing behind of a temporary server, and a kept data folder can be opened again by the
// next Start.
//
// A temporary server (no [Options.Data]) gives up durability across a power loss for speed; what it
// committed still survives [Server.Kill]. A kept one has PostgreSQL's own durable settings.
//
// Failure modes: no binaries → [ErrNotInstalled], whose text says how to install or point to a
// server; a data folder in use by another process → [ErrInUse]; a data folder of another major
// version → an error that names both versions. When this process dies without Stop, Linux
// interrupts the server at once; elsewhere the next Start on this machine stops servers whose
// parent is gone and removes their temporary folders.
package pg
