package chaos_test

import (
	"os"
	"testing"

	"lockstep.internal/e2e/fixture"
)

func TestMain(m *testing.M) { os.Exit(fixture.Main(m, 2)) }
