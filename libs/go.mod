module lockstep.internal/libs

go 1.26.0
