module lockstep.internal/services/watcher

go 1.26.0
