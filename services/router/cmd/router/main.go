// Command router runs the router.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/router"
)

func main() { service.Main(router.Program(), router.DefaultConfig(), router.Main) }
