// Package peer carries streams between relays: a request that came in at one goes to an agent that another one holds.
//
// A [Pool] keeps a few tunnels to each relay that is needed, and a [Handler] takes those of others. Each is opened with a token of its own that lives for seconds. Streams go one
// way only, from who took the request to who holds the agent, and who takes one does as it says: it looks for nothing, so that no request goes round in circles.
package peer
