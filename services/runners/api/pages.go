package api

import (
	"lockstep.internal/libs/apirequest"
	"lockstep.internal/services/runners/postgres"
)

const (
	defaultJobs      = 100
	defaultPipelines = 50
)

// pageOf validates the paging fields of a request for a list that begins with the newest entry.
func pageOf(size int32, token string, defaultSize int) (postgres.Page, error) {
	n, err := apirequest.PageSize(size, defaultSize)
	if err != nil {
		return postgres.Page{}, err
	}
	before, err := apirequest.PageToken(token)
	return postgres.Page{Size: n, Before: before}, err
}
