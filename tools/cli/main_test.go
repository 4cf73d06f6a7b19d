package cli

import (
	"net/http"
	"testing"

	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// closeIdle closes idle connections of http.DefaultClient.
func closeIdle() { http.DefaultClient.CloseIdleConnections() }
