package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsDataError reports whether the database refused the data of a statement: a value that it cannot store, a violated
// constraint, or a value above a limit of the database. The same statement with the same data fails again, unless
// another transaction changes what a constraint depends on. It is false for serialization failures, deadlocks, lost
// connections and missing resources.
func IsDataError(err error) bool {
	switch errorClass(err) {
	case "22", // data exception
		constraintViolation,
		"54": // program limit exceeded
		return true
	default:
		return false
	}
}

const constraintViolation = "23"

// IsConstraintViolation reports whether the data of a statement violated a constraint. It is the data error that other
// transactions can mend.
func IsConstraintViolation(err error) bool { return errorClass(err) == constraintViolation }

// errorClass returns the class of the SQLSTATE that the database reported; empty if it reported none.
func errorClass(err error) string {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(refusal.Code) < 2 {
		return ""
	}
	return refusal.Code[:2]
}
