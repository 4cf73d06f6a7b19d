module lockstep.internal/services/dispatcher

go 1.26.0

require (
	github.com/google/uuid v1.6.0
	github.com/nats-io/nats.go v1.55.0
	github.com/prometheus/client_golang v1.25.0
	github.com/stretchr/testify v1.12.1
	go.opentelemetry.io/otel v1.47.0
	go.opentelemetry.io/otel/trace v1.47.0
	go.uber.org/goleak v1.3.0
	golang.org/x/sync v0.24.0
	k8s.io/api v0.37.2
	k8s.io/apimachinery v0.37.2
	k8s.io/client-go v0.37.2
	lockstep.internal/libs v0.0.0
	lockstep.internal/schemas/gen v0.0.0
	lockstep.internal/tools/testkit v0.0.0
)

replace (
	lockstep.internal/libs => ../../libs
	lockstep.internal/schemas/gen => ../../schemas/gen
	lockstep.internal/tools/testkit => ../../tools/testkit
)
