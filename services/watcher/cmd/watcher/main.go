// Command watcher is lockstep-watcher: see its --help.
package main

import (
	"os"
	"runtime/debug"

	"lockstep.internal/libs/service"
	"lockstep.internal/services/watcher"
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(watcher.GCPercent)
	}
	service.Main(watcher.Program(), watcher.DefaultConfig(), watcher.Main)
}
