package wire_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/wire"
	"lockstep.internal/tools/testkit/runnerreplay"
)

// TestRecordedRequestsAreDecoded is about the requests of a real runner.
func TestRecordedRequestsAreDecoded(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, e := range runnerreplay.Exchanges() {
		if value := e.Headers["Content-Range"]; value != "" {
			r, err := wire.ParseContentRange(value)
			require.NoError(t, err)
			require.Equal(t, value, r.String())
			if e.Answer.Status == http.StatusAccepted {
				require.Equal(t, e.Answer.Headers[wire.HeaderRange], wire.StoredRange(r.End+1))
			}
		}
		if e.Body == nil {
			continue
		}
		// The placeholders of tokens have a space, and that of the checksum is no checksum.
		body := strings.NewReplacer("{job ", "{job", "{checksum}", "crc32:6673f471").Replace(string(e.Body))
		call := e.Method() + " " + strings.TrimRight(e.Path(), "0123456789")
		var request wire.Request
		switch call {
		case "POST /api/v4/runners":
			request = &wire.RegisterRequest{}
		case "POST /api/v4/runners/verify":
			request = &wire.RunnerRequest{}
		case "POST /api/v4/jobs/request":
			request = &wire.JobRequest{}
		case "PUT /api/v4/jobs/":
			request = &wire.UpdateRequest{}
		}
		require.NotNil(t, request, call)
		require.NoError(t, wire.Unmarshal([]byte(body), request), call)
		seen[call]++
		switch r := request.(type) {
		case *wire.RegisterRequest:
			require.Equal(t, wire.Tags{"a", "b"}, r.TagList)
			require.True(t, *r.RunUntagged && r.Locked)
		case *wire.JobRequest:
			require.Equal(t, "s_1746f8786189", r.SystemID)
			require.Equal(t, "17.9.3", r.Info.Version)
			require.True(t, r.Info.Features.CancelGracefully)
		case *wire.UpdateRequest:
			sum, size := r.Trace()
			require.EqualValues(t, 0x6673f471, *sum)
			require.Positive(t, *size)
		}
	}
	require.Len(t, seen, 4)
}

// TestJobsAreThoseThatRunnerAccepted encodes recorded jobs with the types of this package.
func TestJobsAreThoseThatRunnerAccepted(t *testing.T) {
	t.Parallel()
	jobs := 0
	for _, e := range runnerreplay.Exchanges() {
		if !e.Replay.Offer {
			continue
		}
		jobs++
		var job wire.Job
		decoder := json.NewDecoder(strings.NewReader(string(e.Answer.Body)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&job))
		raw, err := json.Marshal(job)
		require.NoError(t, err)
		require.JSONEq(t, string(e.Answer.Body), string(raw))
	}
	require.Equal(t, 8, jobs)
}
