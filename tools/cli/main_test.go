package cli

import (
	"net/http"
	"testing"

	"lockstep.internal/tools/testkit/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(m)
}

// closeIdle lets connections of the commands' client go, which it would keep for the next call.
func closeIdle() { http.DefaultClient.CloseIdleConnections() }
