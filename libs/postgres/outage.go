package postgres

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsUnavailable says whether an error means that the database was away or went away in the middle, so that whoever asked may ask again: what was asked may
// have been done. It is false for what the database refused, and for errors that are not of a connection.
func IsUnavailable(err error) bool {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok {
		return passing(refusal.Code)
	}
	var connecting *pgconn.ConnectError
	if errors.As(err, &connecting) || pgconn.SafeToRetry(err) {
		return true
	}
	for _, cut := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.EPIPE} {
		if errors.Is(err, cut) {
			return true
		}
	}
	return false
}

// unreachable is Outage for errors that can be of nothing but a connection, or of a server that is starting or ending, whatever they look like.
func unreachable(err error) bool {
	var refusal *pgconn.PgError
	return !errors.As(err, &refusal) || passing(refusal.Code)
}

// passing are the codes by which a server says that it cannot serve now.
func passing(code string) bool {
	return strings.HasPrefix(code, "08") || // connection exception
		strings.HasPrefix(code, "57P") || // shutdown, crash, cannot connect now
		code == "53300" // too many connections
}
