package kubelet

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	retries    = 6
	firstRetry = 100 * time.Millisecond
)

// retrying retries a change when the API server fails. kwok does not retry such a change, so the pod
// would keep its old status.
type retrying struct {
	next http.RoundTripper
	// wait returns a channel that fires after a delay.
	wait func(time.Duration) <-chan time.Time
}

func (r retrying) RoundTrip(request *http.Request) (*http.Response, error) {
	delay := firstRetry
	for attempt := 0; ; attempt++ {
		response, err := r.next.RoundTrip(request)
		failed := err != nil || response.StatusCode == http.StatusInternalServerError
		change := request.Method == http.MethodPatch || request.Method == http.MethodDelete
		if !failed || !change || attempt == retries {
			return response, err //nolint:wrapcheck // a transport returns the error of the next one
		}
		again, resetErr := reset(request)
		if resetErr != nil {
			return response, err //nolint:wrapcheck // as above
		}
		select {
		case <-request.Context().Done():
			return response, err //nolint:wrapcheck // as above
		case <-r.wait(delay):
		}
		if response != nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
		request, delay = again, 2*delay
	}
}

// reset returns the request as it was before it was sent.
func reset(request *http.Request) (*http.Request, error) {
	again := request.Clone(request.Context())
	if request.GetBody == nil {
		return again, nil
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, fmt.Errorf("read the request again: %w", err)
	}
	again.Body = body
	return again, nil
}
