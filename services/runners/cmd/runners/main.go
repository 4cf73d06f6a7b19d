// Command runners runs the runners service.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/runners"
)

func main() { service.Main(runners.Program(), runners.DefaultConfig(), runners.Main) }
