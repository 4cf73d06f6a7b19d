package forward

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"lockstep.internal/services/relay/audit"
)

// deadlineOf returns until when the caller waits for a response: the deadline of the context, else the timeout of a
// Kubernetes request (kubectl --request-timeout), else the wait of the header Prefer (RFC 7240, section 4.3). It
// subtracts a part, so that the caller receives the reason if there is no response. Zero without a deadline.
func deadlineOf(r *http.Request, protocol audit.Protocol, query url.Values, now time.Time) time.Time {
	deadline, found := r.Context().Deadline()
	patience := deadline.Sub(now)
	switch {
	case found:
	case protocol == audit.Kubernetes:
		patience, _ = time.ParseDuration(query.Get("timeout")) // the API server reports an invalid one
	default:
		patience = preferredWait(r.Header["Prefer"])
	}
	if patience <= 0 && !found {
		return time.Time{}
	}
	return now.Add(patience - min(patience/5, 2*time.Second))
}

// preferredWait returns the wait of the header Prefer; 0 without one.
func preferredWait(prefer []string) time.Duration {
	for preference := range strings.SplitSeq(strings.Join(prefer, ","), ",") {
		name, seconds, _ := strings.Cut(strings.TrimSpace(preference), "=")
		if strings.EqualFold(name, "wait") {
			wait, _ := time.ParseDuration(seconds + "s") // an invalid preference is ignored
			return wait
		}
	}
	return 0
}
