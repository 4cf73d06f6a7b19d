// Package jetstreamapi sends two requests of JetStream's API whose responses no publisher can forge: for one stored
// message, and for the next messages of a consumer.
//
// The client's own functions take headers that a publisher has set for those of the server: a message with the header
// Status is a status to them, and a direct get returns the publisher's subject and sequence.
package jetstreamapi
