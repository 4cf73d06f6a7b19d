// Package port holds TCP ports of 127.0.0.1 for servers of tests that listen later than their port
// has to be known, or that go down and come back.
//
// A port that was found by listening and closing is anybody's: another test's server, or the near
// end of somebody's connection, may have it by the time it is listened on. One that is held is
// given to nobody who asks for a free port; whoever names it can listen on it, as often as wanted,
// and while nobody does, connections are refused.
//
// This is so on Linux. Elsewhere a port is found and not held: what is there is what it was without
// this package.
package port
