// Package errcodes turns the registry of error codes, schemas/errors.json, into its Go table.
//
// The error for an invalid registry names every broken rule (see registry.go).
package errcodes
