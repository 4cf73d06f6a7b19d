// Package nats reads desired states, publishes results and requests Secrets.
//
// [DesiredReader] reads from the first message each time it runs, so a new leader receives every desired state. It
// acknowledges a message once the queue has it.
//
// [Publisher] publishes results in order per workspace, each until it is acknowledged. A result
// replaces a waiting one of the same type, so the memory is bounded by the number of workspaces.
// Results without an acknowledgement at the end of a session are lost; the next leader applies and
// reports again.
//
// [Secrets] requests and opens the values of Secrets. Values are never logged.
package nats
