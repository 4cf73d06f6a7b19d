// Command state runs the state service.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/state"
)

func main() { service.Main(state.Program(), state.DefaultConfig(), state.Main) }
