module lockstep.internal/tools/testkit

go 1.26.0
