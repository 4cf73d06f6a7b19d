// Package golden holds the tests that every event that was ever released can still be read: by today's schemas, by today's Go types, and through NATS.
package golden
