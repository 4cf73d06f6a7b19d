// Package natsauth decides who may say and hear what on NATS.
//
// [Init] writes the server's configuration and keys. Control-plane services are static users of the
// account CONTROL, the only one with JetStream. Agents live in AGENTS, without JetStream: with it,
// a publish whose reply is somebody else's subject makes the server store its acknowledgement
// there. They reach their own subjects, and the consumers made for them in advance, as services
// that CONTROL exports; [Permissions] narrows these to one agent.
//
// Outside tools read the public stream DEPLOYS and can do nothing else, in either of two accounts.
// As a subscriber (SUBSCRIBERS) each reaches one consumer, made for it in advance, and hears its
// own inbox only. As a listener (LISTENERS) it hears facts as the stream stores them, and may
// publish nothing at all. The two are apart since the answer to a request goes where its sender
// says: in one account with both, a subscriber could have answers delivered on the subjects of
// facts, to all who listen there.
//
// Agents and readers are admitted by the [Responder], which the server asks at every connect and
// which asks an [Authenticator]. Each admission ends within the hour; clients come back by
// themselves. [Disconnector] ends it at once. While no responder runs, whoever is in stays in. With
// the issuer key anybody can be made of any account but the system's.
//
// What the border between the accounts does to agents:
//   - Reading goes through [PullReader], because pull requests do not survive a reconnect.
//   - A message with neither payload nor headers ends the answer to a pull request; nobody may put
//     one on DESIRED or CONTROL.
//   - An agent can direct answers to its own requests to any inbox of AGENTS that it can name.
//     Inboxes end in 22 random characters, so it cannot name another's; still an agent must check
//     that what it receives is on its own subject.
//   - Headers pass as they are: streams that agents write may allow no rollup, no TTL, no counters,
//     no schedules, and their readers no message ids.
package natsauth
