// Package natsauth writes the configuration of the NATS server and decides what each client may
// publish and subscribe to.
//
// [Init] writes the server's configuration and keys. The control plane's services are static users of
// the account CONTROL, the only one with JetStream. Agents are users of AGENTS, without JetStream: with
// JetStream, a publish whose reply is another agent's subject would store the acknowledgement there.
// CONTROL exports the agents' subjects and consumers as services; [Permissions] limits each agent to its
// own.
//
// Outside tools can only read the public stream DEPLOYS. A subscriber (SUBSCRIBERS) reaches one existing
// consumer. A listener (LISTENERS) receives facts as the stream stores them and may publish nothing. The
// accounts are separate because the server sends the response of a request to any subject that the
// requester names, so also to the subjects of listeners.
//
// The [Responder] authorizes agents and readers: the server asks it at every connect, and it asks an
// [Authenticator]. A user JWT expires within one hour, and clients reconnect. [Disconnector] closes the
// connections at once. While no responder runs, connected clients stay connected. The issuer key can
// create users of any account but the system's.
//
// The account boundary has consequences for agents:
//   - They read through [PullReader], because pull requests do not survive a reconnect.
//   - A message without payload and headers ends the response to a pull request; DESIRED and CONTROL
//     must not contain one.
//   - An agent can direct responses to any inbox of AGENTS that it can name. Inboxes end in 22 random
//     characters. Agents still check that a received message is on their own subject.
//   - Headers pass unchanged: streams that agents write must not allow rollup, TTL, counters or
//     schedules, and their readers must not use message ids.
package natsauth
