// Command build builds the Kubernetes control plane for tests, where it is missing or older than
// its sources, telling on standard error how far it is, and prints the path of the program.
//
// Tests build it themselves when they have to, but `go test` shows nothing of the minutes that this
// takes the first time.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"lockstep.internal/tools/testkit/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	path, err := lab.Binary(ctx, lab.Options{Progress: os.Stderr})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, path)
}
