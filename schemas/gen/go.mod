module lockstep.internal/schemas/gen

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/go-json-experiment/json v1.27.2
	github.com/stretchr/testify v1.12.1
	google.golang.org/protobuf v1.36.12
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
