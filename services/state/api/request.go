package api

import (
	"regexp"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/state/postgres"
)

const maxDisplayName = 100

// slug checks a DNS-safe name of at most 40 characters.
func slug(value string) error {
	ok, _ := regexp.MatchString(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`, value)
	if !ok {
		return fault.New(errcode.InvalidArgument, "name %q must be 1 to 40 characters of a-z, 0-9 and inner -", value).
			With("field", "name")
	}
	return nil
}

// username checks a login name: a slug that may have dots and underscores.
func username(value string) error {
	ok, _ := regexp.MatchString(`^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$`, value)
	if !ok {
		return fault.New(errcode.InvalidArgument,
			"username %q must be 1 to 64 characters of a-z, 0-9 and inner ., _ and -", value).
			With("field", "username")
	}
	return nil
}

func displayName(field, value string) error {
	if value == "" || len(value) > maxDisplayName {
		return fault.New(errcode.InvalidArgument, "%s must have 1 to %d characters", field, maxDisplayName).
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
