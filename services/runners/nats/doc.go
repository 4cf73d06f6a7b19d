// Package nats is the NATS adapter of the service: it publishes the outbox to the streams JOBS and RUNNERS, and
// reads JOBS and ADMISSION.
package nats
