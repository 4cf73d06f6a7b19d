// Package nats is the NATS adapter of the service. It reads the stream JOBS into the database, keeps a copy of the
// stream RUNNERS in memory, and publishes the outbox to the stream ADMISSION.
package nats
