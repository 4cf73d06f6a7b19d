// Package nats keeps the table of package access up to date from the streams ACCESS and DIRECTORY. It makes no calls:
// people can enter while the state service is down, and a right that ends takes effect within a second.
//
// The higher revision of a workspace wins, so a stream that was restored from an older copy changes nothing. A stream
// that was recreated replaces the table once it is read to its end. People who are blocked, deleted or unknown enter
// nothing.
package nats
