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
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(refusal.Code) < 2 {
		return false
	}
	switch refusal.Code[:2] {
	case "22", // data exception
		"23", // integrity constraint violation
		"54": // program limit exceeded
		return true
	default:
		return false
	}
}
