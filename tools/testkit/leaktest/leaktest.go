package leaktest

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// timeout bounds the wait for goroutines that are about to end.
const timeout = 20 * time.Second

// Main runs the tests of a package. If they pass, it calls Find. It exits the process.
func Main(m goleak.TestingM, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Find waits until all goroutines but the caller's have ended. It fails if that takes longer than
// 20 s; the error has the stacks of the goroutines that still run. Goroutines of package testing do
// not count.
func Find(options ...goleak.Option) error { return find(timeout, options...) }

func find(timeout time.Duration, options ...goleak.Option) error {
	for deadline := time.Now().Add(timeout); ; {
		err := goleak.Find(options...) // gives up after half a second
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("goroutines leaked: %w", err)
		}
	}
}
