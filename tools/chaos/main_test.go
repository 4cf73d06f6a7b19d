package main

import (
	"fmt"
	"os"
	"testing"

	"lockstep.internal/tools/testkit/leaktest"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(natsVariable); raw != "" {
		if err := serveNATS(raw); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	leaktest.Main(m)
}
