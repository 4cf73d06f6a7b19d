// Package nats reads desired states, publishes results and requests Secrets.
//
// [DesiredReader] reads from the first message each time it runs, so a new leader receives every desired state. It
// acknowledges a message once the queue has it.
//
// [Publisher] publishes results in order per workspace, each until it is acknowledged. While NATS
// is down it keeps at most one result of each type per workspace: a later one replaces an earlier
// one. So its memory is bounded by the number of workspaces, and the latest result is never lost.
//
// [Secrets] requests and opens the values of Secrets. Values are never logged.
package nats
