// Command gateway runs the gateway.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/gateway"
)

func main() { service.Main(gateway.Program(), gateway.DefaultConfig(), gateway.Main) }
