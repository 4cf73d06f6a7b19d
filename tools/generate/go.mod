module lockstep.internal/tools/generate

go 1.26.0
