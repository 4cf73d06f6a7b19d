package deliver

import (
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"lockstep.internal/libs/egress"
	"lockstep.internal/services/admission/controller"
	"lockstep.internal/services/admission/postgres"
)

// lane bounds the requests to one controller. The mutex of the dispatcher guards it.
type lane struct {
	controller controller.Controller
	running    int
	breaker    breaker
	limiter    *rate.Limiter
	http       *http.Client
}

// update gives the lane the settings of the controller. A changed controller is tried at once.
func (l *lane) update(c controller.Controller, network egress.Config) {
	if l.controller.ID == c.ID && l.controller.Revision == c.Revision && l.controller.Deleted == c.Deleted {
		return
	}
	l.close()
	l.controller, l.breaker, l.limiter = c, breaker{}, nil
	if c.Webhook == nil {
		return
	}
	l.http = newClient(*c.Webhook, network)
	if c.Webhook.Rate > 0 {
		l.limiter = rate.NewLimiter(rate.Limit(c.Webhook.Rate), max(int(math.Ceil(c.Webhook.Rate)), 1))
	}
}

func (l *lane) close() {
	if l.http != nil {
		l.http.CloseIdleConnections()
		l.http = nil
	}
}

func (l *lane) requestTimeout() time.Duration {
	if l.controller.Webhook == nil {
		return 0
	}
	return l.controller.Webhook.RequestTimeout
}

// free returns how many questions may be taken now.
func (l *lane) free(now time.Time) int {
	limit := l.controller.Concurrency()
	if l.controller.ID == postgres.EvaluationLane {
		limit = evaluations
	}
	n := limit - l.running
	if l.limiter != nil {
		n = min(n, int(l.limiter.TokensAt(now)))
	}
	return l.breaker.allowed(n, l.running, now)
}

// spend counts a question that was taken.
func (l *lane) spend(now time.Time) {
	if l.limiter != nil {
		l.limiter.AllowN(now, 1)
	}
}
