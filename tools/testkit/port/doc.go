// Package port reserves TCP ports of 127.0.0.1 for servers of tests: those that start after their port must be known,
// and those that restart.
//
// A port that was found by listen and close can be taken by another process before it is used. The kernel does
// not give a held port to others. A server can still listen on it explicitly; without a server, connections are
// refused.
//
// Ports are held on Linux only.
package port
