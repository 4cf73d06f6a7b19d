// Package meter limits how much one agent may publish on the streams that all agents share. At their size limit these
// streams drop the oldest messages of all agents. Without a limit, one agent could displace the history of the others.
//
// [Meter] counts the stored messages of each agent on each stream. Package nats reads them and blocks an agent that
// exceeds the [Limits]: its connections are closed, and it may not connect until the limits permit it again. The
// package is pure.
//
// The limits of an hour bound how fast an agent fills a stream, those of a day how much of it. In any 24 hours one
// agent displaces at most [Limits.DailyBytes] of a stream, so with one such agent the history of the others lasts
//
//	size of the stream / (DailyBytes + what the others publish in a day) days.
//
// What the server stores between the excess and the disconnection comes on top, and all that connected agents publish
// while no state service runs.
//
// The number of messages in a stream needs no limit of its own: a message costs the server 4 bytes of memory. A subject
// costs 0.2 to 0.8 KB, so their number is limited.
package meter
