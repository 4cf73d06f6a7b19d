package signin

import (
	"net/http"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/gateway/page"
)

func (s *SignIn) page(w http.ResponseWriter, r *http.Request, status int, p page.Page) {
	if err := page.Write(w, status, p); err != nil {
		s.logger.DebugContext(r.Context(), "send a page", logkey.Error(err))
	}
}
