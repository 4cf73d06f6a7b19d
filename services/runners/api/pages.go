package api

import (
	"strconv"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/postgres"
)

const (
	maxPageSize      = 500
	defaultJobs      = 100
	defaultPipelines = 50
)

// pageSize validates the size of a page.
func pageSize(size int32, defaultSize int) (int, error) {
	switch {
	case size == 0:
		return defaultSize, nil
	case size < 0 || size > maxPageSize:
		return 0, fault.New(errcode.InvalidArgument, "page_size %d must be 1 to %d, or 0 for %d", size, maxPageSize,
			defaultSize).With("field", "page_size")
	default:
		return int(size), nil
	}
}

// pageOf validates the paging fields of a request for a list that begins with the newest entry.
func pageOf(size int32, token string, defaultSize int) (postgres.Page, error) {
	n, err := pageSize(size, defaultSize)
	if err != nil {
		return postgres.Page{}, err
	}
	before, err := pageToken(token)
	return postgres.Page{Size: n, Before: before}, err
}

// pageToken returns the id in a token, which is that of the last entry of the page before; 0 for none.
func pageToken(token string) (int64, error) {
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

// nextPage returns the token of the next page; empty after the last one.
func nextPage[T any](entries []T, size int, id func(T) int64) string {
	if len(entries) < size {
		return ""
	}
	return strconv.FormatInt(id(entries[len(entries)-1]), 10)
}

// requireID returns an error if a request has no id.
func requireID(field string, id int64) error {
	if id <= 0 {
		return fault.New(errcode.InvalidArgument, "%s is missing: give a positive id", field).With("field", field)
	}
	return nil
}
