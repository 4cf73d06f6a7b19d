module lockstep.internal/services/state

go 1.26.0
