// Command relay carries requests to agents that have dialled out to it.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay"
)

func main() { service.Main(relay.Program(), relay.DefaultConfig(), relay.Main) }
