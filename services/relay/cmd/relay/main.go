// Command relay forwards requests to the agents that are connected to it.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay"
)

func main() { service.Main(relay.Program(), relay.DefaultConfig(), relay.Main) }
