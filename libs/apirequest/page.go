package apirequest

import (
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// MaxPageSize is the maximum number of entries of a page.
const MaxPageSize = 500

// PageSize validates the size of a page.
func PageSize(size int32, defaultSize int) (int, error) {
	switch {
	case size == 0:
		return defaultSize, nil
	case size < 0 || size > MaxPageSize:
		return 0, fault.New(errcode.InvalidArgument, "page_size %d must be 1 to %d, or 0 for %d", size, MaxPageSize,
			defaultSize).With("field", "page_size")
	default:
		return int(size), nil
	}
}

// PageToken returns the id in a token, which is that of the last entry of the page before; 0 for none.
func PageToken(token string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(token, 10, 64)
	if err != nil || id <= 0 {
		return 0, fault.New(errcode.InvalidArgument, "page_token: not a token returned by this method").
			With("field", "page_token")
	}
	return id, nil
}

// NextPage returns the token of the next page; empty after the last one.
func NextPage[T any](entries []T, size int, id func(T) int64) string {
	if len(entries) < size {
		return ""
	}
	return strconv.FormatInt(id(entries[len(entries)-1]), 10)
}

// RequireID returns an error if a request has no id.
func RequireID(field string, id int64) error {
	if id <= 0 {
		return fault.New(errcode.InvalidArgument, "%s is missing: give a positive id", field).With("field", field)
	}
	return nil
}
