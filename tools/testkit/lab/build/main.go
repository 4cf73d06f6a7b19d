// Command build builds kubelab if it is missing or outdated, reports progress on standard error, and prints its path.
//
// Tests also build it if necessary, but `go test` does not show progress, and the first build takes minutes.
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
