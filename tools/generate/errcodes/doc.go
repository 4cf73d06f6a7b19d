// Package errcodes turns the registry of error codes, schemas/errors.json, into its Go table.
//
// It refuses a registry that breaks its own rules (see registry.go), naming every fault, so that
// the table can be used without checks.
package errcodes
