package s3_test

import (
	"testing"

	"lockstep.internal/services/runners/objects/objectstest"
	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	objectstest.Child()
	leaktest.Main(m)
}
