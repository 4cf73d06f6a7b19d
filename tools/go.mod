module lockstep.internal/tools

go 1.26.0
