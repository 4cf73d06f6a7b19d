// Command workspace-agent lets people work in the container that it runs in.
package main

import (
	"os"

	// CA certificates for images without any.
	_ "golang.org/x/crypto/x509roots/fallback"

	"lockstep.internal/services/gateway/agent"
)

func main() { os.Exit(agent.Program(os.Args[1:], os.Stdout, os.Stderr, "/dev/termination-log")) }
