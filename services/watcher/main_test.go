package watcher_test

import (
	"testing"

	"lockstep.internal/tools/testkit/labtest"
)

func TestMain(m *testing.M) { labtest.Main(m) }
