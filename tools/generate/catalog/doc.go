// Package catalog reads schemas/events: every event type with its schema and its subject.
//
// [Load] returns an error with all faults if a schema breaks a rule of schemas/README.md or uses an
// unsupported keyword. The generators rely on these rules without further checks.
package catalog
