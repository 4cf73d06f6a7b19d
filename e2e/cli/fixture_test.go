package cli_test

import (
	"os"
	"testing"

	"lockstep.internal/e2e/fixture"
)

var shared = fixture.Share(nil, nil, nil)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 6)) }
