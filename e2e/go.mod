module lockstep.internal/e2e

go 1.26.0
