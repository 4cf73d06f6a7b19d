// Package hub opens streams to agents: through a connection that this relay holds, through another relay that holds one, or, while there is none, as soon as there is.
//
// It promises: a stream goes to a replica that is connected; where a connection turns out to be gone before anything was taken, the next one is tried; who waits is woken by the
// registry and looks at nothing in between, unless there is a connection that could not be reached: it is tried again after 200 ms, and then ever less often, up to every 5 s. A request that another relay sent here is followed or refused, never sent on.
//
// It asks no clock but for how long it waits at the most.
package hub
