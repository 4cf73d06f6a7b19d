// Command watcher is lockstep-watcher: see its --help.
package main

import (
	"lockstep.internal/libs/service"
	"lockstep.internal/services/watcher"
)

func main() {
	service.CollectGarbageAt(watcher.GCPercent)
	service.Main(watcher.Program(), watcher.DefaultConfig(), watcher.Main)
}
