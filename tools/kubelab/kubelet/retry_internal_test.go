package kubelet

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChangesAreRetriedAfterServerErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		method   string
		failures int32
		status   int
		tries    int32
	}{
		"no failure":           {http.MethodPatch, 0, http.StatusOK, 1},
		"patch":                {http.MethodPatch, 3, http.StatusOK, 4},
		"delete":               {http.MethodDelete, 1, http.StatusOK, 2},
		"a GET is not retried": {http.MethodGet, 3, http.StatusInternalServerError, 1},
		"retries are limited":  {http.MethodPatch, 100, http.StatusInternalServerError, 7},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if string(body) != "change" {
					w.WriteHeader(http.StatusBadRequest)
				} else if tries.Add(1) <= test.failures {
					w.WriteHeader(http.StatusInternalServerError)
				}
			}))
			defer server.Close()
			var waited []time.Duration
			client := &http.Client{
				Transport: retrying{next: server.Client().Transport, wait: func(d time.Duration) <-chan time.Time {
					waited = append(waited, d)
					fired := make(chan time.Time, 1)
					fired <- time.Time{}
					return fired
				}},
			}
			request, err := http.NewRequestWithContext(t.Context(), test.method, server.URL, strings.NewReader("change"))
			require.NoError(t, err)
			response, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, test.status, response.StatusCode)
			require.Equal(t, test.tries, tries.Load())
			require.Len(t, waited, int(test.tries)-1)
			for i := 1; i < len(waited); i++ {
				require.Equal(t, 2*waited[i-1], waited[i])
			}
		})
	}
}
