package wire_test

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/runners/wire"
)

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	recorder := httptest.NewRecorder()
	require.NoError(t, wire.WriteJSON(recorder, http.StatusCreated, wire.Runner{ID: 7, Token: "t"}))
	require.Equal(t, http.StatusCreated, recorder.Code)
	require.Equal(t, "application/json", recorder.Header().Get("Content-Type"))
	require.Equal(t, "no-store", recorder.Header().Get("Cache-Control"))
	require.JSONEq(t, `{"id":7,"token":"t","token_expires_at":null}`, recorder.Body.String())

	recorder = httptest.NewRecorder()
	require.Error(t, wire.WriteJSON(recorder, http.StatusOK, math.Inf(1)))
	require.Empty(t, recorder.Body.String())
}

// TestListsOfJobAreNeverNull is about the smallest job that a runner accepts.
func TestListsOfJobAreNeverNull(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(wire.NewJob(101, "t"))
	require.NoError(t, err)
	var fields map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &fields))
	for _, name := range []string{"steps", "artifacts", "cache", "credentials", "dependencies"} {
		require.Equal(t, "[]", string(fields[name]), name)
	}
	require.JSONEq(t, `[{"key":"GIT_STRATEGY","value":"none","public":true}]`, string(fields["variables"]))
	require.Contains(t, string(fields["git_info"]), `"repo_url":"","ref":"","sha":""`)
}
