package labtest

import (
	"context"
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"lockstep.internal/tools/testkit/lab"
	"lockstep.internal/tools/testkit/leaktest"
)

// startTimeout bounds the build and the start of a control plane on a busy machine.
const startTimeout = 20 * time.Minute

// shared is the lab of this test process: a package variable is the only way to share it between tests.
var shared struct { //nolint:gochecknoglobals // see above
	once sync.Once
	lab  *lab.Lab
	err  error
}

// Kubeconfig returns the path of the administrator's kubeconfig. The first call starts the control plane.
func Kubeconfig(tb testing.TB) string {
	tb.Helper()
	shared.once.Do(func() {
		// Not the test's context: the shared lab outlives the test that starts it.
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		shared.lab, shared.err = lab.Start(ctx, lab.Options{Progress: os.Stderr})
	})
	if shared.err != nil {
		tb.Fatalf("start a Kubernetes control plane for tests: %v", shared.err)
	}
	return shared.lab.Kubeconfig()
}

// Main runs the package's tests, stops the control plane and fails when goroutines leak. Call it from
// TestMain; it exits the process.
func Main(m *testing.M) { leaktest.Main(run{m}) }

// Parallel sets the default of the flag -parallel. Tests mostly wait for the control plane, so that more of
// them than there are processors can run at once. Call it before Main.
func Parallel(tests int) {
	if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
		panic(err) // package testing has the flag
	}
}

type run struct{ m *testing.M }

// Run runs the tests and stops the control plane.
func (r run) Run() int {
	code := r.m.Run()
	if shared.lab == nil {
		return code
	}
	if err := shared.lab.Stop(); err != nil {
		_, _ = os.Stderr.WriteString("stop the Kubernetes control plane for tests: " + err.Error() + "\n")
		return max(code, 1)
	}
	return code
}
