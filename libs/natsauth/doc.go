// Package natsauth writes the configuration of the NATS server and decides what each client may
// publish and subscribe to.
//
// [Init] writes the server's configuration and keys. The account CONTROL has the streams. Its only user is the
// state service, which owns them. Everybody else is in an account without them: with
// JetStream, the server writes the response to any request to the subject that the requester names, and
// the messages of a consumer to the subject that its creator names. So it would write what the requester
// may not write, and acknowledgements would erase desired state.
//
// CONTROL exports subjects and consumers as services. Agents are users of AGENTS; [Permissions] limits each agent to
// its own. The services deploys, runners, admission, router and relay have accounts of their own: an import serves all
// users of an account. The first three ask the state service for consumers; see package consumers. The relay's account
// has JetStream in memory, for the bucket of relays only. The operator, a person with the command line, reads streams
// by direct gets and can change nothing.
//
// Outside tools can only read the public streams DEPLOYS, JOBS and ADMISSION. A subscriber (SUBSCRIBERS) reaches
// one existing consumer. A listener (LISTENERS) receives events as the stream stores them and may publish nothing. The
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
