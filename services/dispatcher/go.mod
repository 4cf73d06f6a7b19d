module lockstep.internal/services/dispatcher

go 1.26.0
