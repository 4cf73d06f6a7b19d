// Command deploys runs the deploys service.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/deploys"
)

func main() { service.Main(deploys.Program(), deploys.DefaultConfig(), deploys.Main) }
