package api

import (
	"context"
	"net/http"
	"sync"

	"lockstep.internal/libs/access"
	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// streams limits the open streams of each user: watches of pipelines, and traces that are followed. It is safe for
// concurrent use.
type streams struct {
	limit int

	mu   sync.Mutex
	open map[int64]int
}

func newStreams(limit int) *streams { return &streams{limit: limit, open: map[int64]int{}} }

// begin counts a stream of the caller until end is called. Fault quota_exceeded beyond the limit.
func (s *streams) begin(ctx context.Context) (end func(), err error) {
	caller, _ := access.CallerFrom(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[caller.UserID] >= s.limit {
		return nil, fault.New(errcode.QuotaExceeded,
			"user %d watches %d pipelines and traces here, which is the limit: end a watch, or ask an operator to raise "+
				"access.max_streams_per_user", caller.UserID, s.limit)
	}
	s.open[caller.UserID]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open[caller.UserID]--; s.open[caller.UserID] == 0 {
			delete(s.open, caller.UserID)
		}
	}, nil
}

// serve serves a request as a stream.
func (s *streams) serve(w http.ResponseWriter, r *http.Request, next http.Handler) error {
	end, err := s.begin(r.Context())
	if err != nil {
		return err
	}
	defer end()
	next.ServeHTTP(w, r)
	return nil
}
