// Package nats is the NATS adapter of the state service. It consumes OBSERVED and APPLIED for package ingest,
// authenticates agents and subscribers, prepares their consumers, and answers requests for sealed secrets.
//
// One replica reads each stream, in order. The cursor is stored in the same transaction as the effects, so each message
// takes effect once. Malformed messages, messages with a wrong source and messages that can never be processed go to
// DEAD with the reason. They do not delay others.
package nats
