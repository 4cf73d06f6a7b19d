// Command relay-agent lets relays reach the cluster that it runs in.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/relay/agent"
)

func main() { service.Main(agent.Program(), agent.DefaultConfig(), agent.Main) }
