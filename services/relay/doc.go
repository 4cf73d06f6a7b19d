// Package relay forwards callers' requests to agents. Agents run behind firewalls and dial the relay.
//
// An agent has several replicas; each keeps a tunnel to one or more relays. A caller may ask any relay: the
// registry names the relay that holds a tunnel of the agent. If no replica is connected, the request waits for
// one. Only the relay that received a request from the caller routes and retries it.
//
// The relay has three listeners: agents (package agentlistener), external for callers (forward, policy and api), and
// internal for other relays (peer). Package connections opens the streams, tunnel carries them.
// The stream AUDIT has audit records of requests (audit), and AGENTS has events about connections (nats). Payloads
// never pass through NATS.
//
// While NATS is unavailable, connected agents stay reachable, and new connections wait to be registered. A relay that
// drains asks its agents to reconnect, and closes each connection after its last stream.
package relay
