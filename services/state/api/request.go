package api

import (
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/directory"
	"lockstep.internal/services/state/postgres"
)

func displayName(field, value string) error {
	if value == "" || len(value) > directory.MaxDisplayName {
		return fault.New(errcode.InvalidArgument, "%s must have 1 to %d characters", field, directory.MaxDisplayName).
			With("field", field)
	}
	return nil
}

func id(field string, value int64) error {
	if value <= 0 {
		return fault.New(errcode.InvalidArgument, "%s is missing: give a positive id", field).With("field", field)
	}
	return nil
}

const (
	defaultPageSize = 50
	maxPageSize     = 500
)

// page reads the paging fields of a request.
func page(size int32, token string) (postgres.Page, error) {
	p := postgres.Page{Size: int(size)}
	switch {
	case size == 0:
		p.Size = defaultPageSize
	case size < 0 || size > maxPageSize:
		return postgres.Page{}, fault.New(errcode.InvalidArgument,
			"page_size %d must be 1 to %d, or 0 for %d", size, maxPageSize, defaultPageSize).
			With("field", "page_size")
	}
	if token != "" {
		after, err := strconv.ParseInt(token, 10, 64)
		if err != nil || after < 0 {
			return postgres.Page{}, fault.New(errcode.InvalidArgument, "page_token: not a token returned by this method").
				With("field", "page_token")
		}
		p.After = after
	}
	return p, nil
}

// next returns the token of the next page; empty after the last one.
func next[T any](items []T, p postgres.Page, id func(T) int64) string {
	if len(items) < p.Size {
		return ""
	}
	return strconv.FormatInt(id(items[len(items)-1]), 10)
}

// timestamp returns nil for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
