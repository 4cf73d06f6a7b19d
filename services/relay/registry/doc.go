// Package registry knows which relay holds a connection to which replica of which agent. It is a pure function of the entries of a key-value bucket, which every relay writes its
// own of and watches whole: nothing here reads a clock or a network.
//
// There are two kinds of entries. A relay has one lease, which expires when it is not refreshed; a connection has one entry, which names its relay and counts only while that one's
// lease is there. So a relay that is killed takes all its connections with it, whatever their number, and refreshing costs one message per relay. In which order entries come does not
// matter.
//
// What a relay itself holds, and has the bucket say, are its [Claims]. Where others took it for dead by mistake, they decide what is told again.
//
// Registry may be used by many goroutines. What it returns is the caller's.
package registry
