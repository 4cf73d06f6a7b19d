module lockstep.internal/services/deploys

go 1.26.0

require (
	github.com/stretchr/testify v1.12.1
	lockstep.internal/libs v0.0.0
	lockstep.internal/schemas/gen v0.0.0
	lockstep.internal/tools/testkit v0.0.0
)

replace (
	lockstep.internal/libs => ../../libs
	lockstep.internal/schemas/gen => ../../schemas/gen
	lockstep.internal/tools/testkit => ../../tools/testkit
)
