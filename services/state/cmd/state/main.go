// Command state runs the state service.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/state/program"
)

func main() { service.Main(program.Program(), program.DefaultConfig(), program.Main) }
