// Command lockstep is the command line of Lockstep.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"lockstep.internal/libs/service"
	"lockstep.internal/tools/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := cli.Run(ctx, os.Args[1:], os.Stdout, os.Stderr, service.Version())
	stop()
	os.Exit(code)
}
