package relay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay"
)

func TestListenerTakesMoreRequestsThanCallersMayHave(t *testing.T) {
	t.Parallel()
	problems := func(maxHTTPRequests int) (found []string) {
		cfg := relay.DefaultConfig()
		cfg.External.MaxHTTPRequests = maxHTTPRequests
		for _, err := range cfg.Validate() {
			found = append(found, err.Error())
		}
		return found
	}
	most := relay.DefaultConfig().External.MaxRequests
	require.Len(t, problems(most), len(problems(most+1))+1)
	require.Contains(t, problems(most),
		"external.max_http_requests: 20000 is not more than external.max_requests, 20000: "+
			"callers would not learn the reason of a refusal")
}
