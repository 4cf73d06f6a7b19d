// Package meter limits how much one agent may publish on the streams that all agents share. At their size limit these
// streams drop the oldest messages of all agents. Without a limit, one agent could displace the history of the others.
//
// [Meter] counts the stored messages of each agent. Package nats reads them and blocks an agent that exceeds the
// [Limits]: its connections are closed, and it may not connect until its hour is over. The package is pure.
package meter
