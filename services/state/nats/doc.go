// Package nats subscribes and publishes: it reads OBSERVED and APPLIED for package ingest, authenticates
// agents and subscribers, prepares their consumers, and answers requests for sealed secrets.
//
// One replica reads each stream, in order. The position moves in the transaction that stores what was read,
// so each message takes effect once. A malformed message, one with a wrong source and one that can never be
// applied go to DEAD with the reason; they delay no other.
package nats
