// Package nats is the NATS adapter of the service: it publishes the outbox to the stream JOBS, and reads that stream.
package nats
