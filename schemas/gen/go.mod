module lockstep.internal/schemas/gen

go 1.26.0
