package object

import (
	"context"
	"errors"
	"fmt"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// Errors of stores. A caller sees them as the faults not_found and payload_too_large.
var (
	// ErrNotFound reports that there is no object with the key.
	ErrNotFound error = fault.New(errcode.NotFound, "the stored content does not exist: it has expired or was deleted")
	// ErrTooLarge reports that the content is larger than the limit. Nothing is stored.
	ErrTooLarge error = fault.New(errcode.PayloadTooLarge, "the content is larger than the limit: store less")
)

// ContentError is the error of the reader that was stored. Nothing is stored.
type ContentError struct{ Err error }

func (e *ContentError) Error() string { return fmt.Sprintf("read the content: %v", e.Err) }

// Unwrap returns the reader's error.
func (e *ContentError) Unwrap() error { return e.Err }

// Unavailable returns the fault unavailable with the cause. operation and its subject are for the log: callers see
// neither. An error of the context keeps its own meaning, because then the caller has ended the operation.
func Unavailable(ctx context.Context, cause error, operation, subject string) error {
	cause = fmt.Errorf("%s %s: %w", operation, subject, cause)
	if ended := ctx.Err(); ended != nil {
		return errors.Join(ended, cause)
	}
	return fault.Wrap(cause, errcode.Unavailable, "the object store is unavailable: try again later")
}
