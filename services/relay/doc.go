// Package relay carries requests of callers to agents behind firewalls, which have dialled out to it.
//
// An agent is one logical thing with several replicas; each keeps a tunnel (package tunnel) to one or more relays. A caller asks any relay. That one knows from the registry, a bucket of
// NATS that every relay has a copy of (packages registry and nats), which relay holds a tunnel of the agent, and opens a stream through it (packages hub, route and peer); where no
// replica is connected, it waits for one. Only the relay that took a request decides, retries and goes elsewhere.
//
// It has three listeners: agents (package intake), external for callers (packages proxy, policy and connectapi), and internal for other relays (package peer). What passed is told on the
// stream AGENTS (package audit), as is who came and went; payloads never travel through NATS.
//
// With NATS away, what is connected goes on to be reached, and what is new waits. A relay that is drained sends its agents elsewhere before it lets go of them.
package relay
