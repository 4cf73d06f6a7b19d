// Command dispatcher applies what the control plane desires in the cluster it runs in.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/dispatcher"
)

func main() { service.Main(dispatcher.Program(), dispatcher.DefaultConfig(), dispatcher.Main) }
