// Package nats is how the dispatcher is told what is desired, tells what became of it, and asks for Secrets.
//
// [Control] tells the agent's configuration, and when everything is to be looked at again. [Desired] begins with the first message each time it runs, so a new leader is told the whole truth; a message is acknowledged once it has
// been taken. [Publisher] tells results in order per workspace, each until it is acknowledged. While NATS is away results
// wait, at most one of each kind per workspace: a later one takes the place of an earlier one of its kind, so what waits is bounded by the
// number of workspaces and the last word on each is never lost. [Secrets] asks and opens; values are never logged.
//
// Everything stays within what an agent may reach across the account border.
package nats
